"""Sort rows into groups: stable, lossless, one counting sort."""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.kernels.spec import Kernel


def _partition(groups: Tensor, n: int) -> tuple[Tensor, Tensor]:
    return torch.argsort(groups, stable=True), torch.bincount(groups, minlength=n)


partition: Kernel[[Tensor, int], tuple[Tensor, Tensor]] = Kernel(
    "partition", _partition, cpu="omnizen.kernels.cpu.partition:partition"
)
"""``partition(groups [k] int64 in [0, n), n) -> (order [k], counts [n])``: positions by group, stable within."""
