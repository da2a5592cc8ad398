"""The elements from a magnitude on, in one pass: memory follows what is kept, never the tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.kernels.spec import Kernel

Kept = tuple[Tensor, Tensor, int]


def _compact(flat: Tensor, threshold: float, room: int) -> Kept:
    least = torch.tensor(threshold, dtype=flat.dtype, device=flat.device)
    kept = (~(flat.abs() < least) & (flat != 0)).nonzero().view(-1)
    return kept[:room], flat[kept[:room]], kept.numel()


compact: Kernel[[Tensor, float, int], Kept] = Kernel(
    "compact",
    _compact,
    cpu="omnizen.kernels.cpu.compaction:compact",
    gpu="omnizen.kernels.gpu.compaction:compact",
)
"""``compact(flat [n], threshold, room) -> (indices [min(c, room)] int64, values [min(c, room)], c)``.

Finds the c elements that are not zero and not below the threshold in magnitude, in order; NaN is among them. The
threshold is rounded to the type of ``flat``. Of more than ``room`` elements the first are written, all are counted.
"""


def all_from(flat: Tensor, threshold: float, expected: float) -> tuple[Tensor, Tensor]:
    """Return indices and values of all elements from a threshold on, in a second pass if more than thought.

    Args:
        flat: ``[n]`` floating.
        threshold: least magnitude.
        expected: how many elements are likely.
    """
    room = min(flat.numel(), int(1.25 * expected) + 64)
    indices, values, count = compact(flat, threshold, room)
    if count > room:
        indices, values, _ = compact(flat, threshold, count)
    return indices, values
