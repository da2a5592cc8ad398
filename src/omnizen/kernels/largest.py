"""The k largest elements, exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.kernels.spec import Kernel


def _largest(flat: Tensor, k: int) -> tuple[Tensor, Tensor]:
    size = flat.abs().nan_to_num(float("inf"), float("inf"))
    least = size.topk(k, sorted=False).values.min() if k else torch.tensor(float("inf"), dtype=flat.dtype)
    kept = size > least
    equal = (size == least).nonzero().view(-1)
    kept[equal if torch.isinf(least) else equal[: k - int(kept.sum())]] = True
    kept &= flat != 0
    indices = kept.nonzero().view(-1)
    return indices, flat[indices]


largest: Kernel[[Tensor, int], tuple[Tensor, Tensor]] = Kernel(
    "largest", _largest, cpu="omnizen.kernels.cpu.largest:largest"
)
"""``largest(flat [n], k in 0..n) -> (indices int64 ascending, values)``: k elements of largest magnitude.

Of equal ones the first are taken. Zeros never come, so fewer than k come where fewer are not zero; what is not
finite always comes, so more than k come where more is not finite.
"""
