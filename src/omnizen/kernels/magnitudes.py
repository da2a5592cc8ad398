"""What is asked of magnitudes before elements are chosen: how many, how large, how spread. NaN is infinite."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from omnizen.kernels.owner import MASK32, mix32
from omnizen.kernels.spec import Kernel


class Moments(NamedTuple):
    """Of some magnitudes: how many, their mean, their variance (divided by the count) and their mean logarithm."""

    num: int
    mean: float
    variance: float
    mean_log: float


NO_MOMENTS = Moments(0, 0.0, 0.0, 0.0)


def _magnitudes(flat: Tensor) -> Tensor:
    return flat.abs().nan_to_num(float("inf"), float("inf"))


def _count_from(flat: Tensor, threshold: float) -> int:
    least = torch.tensor(threshold, dtype=flat.dtype, device=flat.device)
    return int((~(flat.abs() < least) & (flat != 0)).sum())


def _kth_magnitude(flat: Tensor, k: int) -> float:
    return float(_magnitudes(flat).topk(k, sorted=False).values.min())


def _peak(flat: Tensor) -> float:
    size = flat.abs()
    return float(torch.where(size < float("inf"), size, 0.0).max()) if flat.numel() else 0.0


def _moments(flat: Tensor, threshold: float, logs: bool) -> Moments:
    size = flat.abs()
    least = torch.tensor(threshold, dtype=flat.dtype, device=flat.device)
    some = size[(size >= least) & (size > 0) & (size < float("inf"))].double()
    if not some.numel():
        return NO_MOMENTS
    mean_log = float(some.log().mean()) if logs else 0.0
    return Moments(some.numel(), float(some.mean()), float(some.var(correction=0)), mean_log)


def _sample_magnitudes(flat: Tensor, count: int, seed: int) -> Tensor:
    width, longer = divmod(flat.numel(), count)
    i = torch.arange(count, device=flat.device)
    within = (mix32(i ^ (seed & MASK32)) * (width + (i < longer))) >> 32
    return _magnitudes(flat[i * width + i.clamp(max=longer) + within])


count_from: Kernel[[Tensor, float], int] = Kernel(
    "count_from", _count_from, cpu="omnizen.kernels.cpu.magnitudes:count_from"
)
"""``count_from(flat [n], threshold)``: how many elements ``compact`` would find."""

kth_magnitude: Kernel[[Tensor, int], float] = Kernel(
    "kth_magnitude", _kth_magnitude, cpu="omnizen.kernels.cpu.magnitudes:kth_magnitude"
)
"""``kth_magnitude(flat [n], k in 1..n)``: the k-th largest magnitude."""

peak: Kernel[[Tensor], float] = Kernel("peak", _peak, cpu="omnizen.kernels.cpu.magnitudes:peak")
"""``peak(flat [n])``: the largest magnitude that is finite; 0 if there is none."""

moments: Kernel[[Tensor, float, bool], Moments] = Kernel(
    "moments", _moments, cpu="omnizen.kernels.cpu.magnitudes:moments"
)
"""``moments(flat [n], threshold, logs)``: of the finite magnitudes above 0 from the threshold on, in float64.

``mean_log`` is 0 unless asked for.
"""

sample_magnitudes: Kernel[[Tensor, int, int], Tensor] = Kernel(
    "sample_magnitudes", _sample_magnitudes, cpu="omnizen.kernels.cpu.magnitudes:sample_magnitudes"
)
"""``sample_magnitudes(flat [n], count in 1..n, seed) -> [count]``: one magnitude from each of ``count`` stretches.

Stretches are equally long, give or take one. The place within each is hashed, so that no period of the tensor (rows
of a matrix) is sampled at one phase.
"""
