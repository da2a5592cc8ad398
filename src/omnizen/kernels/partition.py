"""Sort rows into groups: stable, lossless, one counting sort."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from omnizen.kernels.owner import hash_owner
from omnizen.kernels.spec import Kernel


class Divided(NamedTuple):
    """Rows by owner.

    Args:
        order: ``[k]`` int64, places of the rows before they were divided.
        rows: ``[k]``, the rows in that order.
        counts: ``[n]`` int64, rows of each owner.
    """

    order: Tensor
    rows: Tensor
    counts: Tensor


def _partition(groups: Tensor, n: int) -> tuple[Tensor, Tensor]:
    return torch.argsort(groups, stable=True), torch.bincount(groups, minlength=n)


def _hash_divide(rows: Tensor, n: int, seed: int, dtype: torch.dtype) -> Divided:
    order, counts = _partition(hash_owner.run("reference", rows, n, seed), n)
    return Divided(order, rows[order].to(dtype), counts)


partition: Kernel[[Tensor, int], tuple[Tensor, Tensor]] = Kernel(
    "partition", _partition, cpu="omnizen.kernels.cpu.partition:partition"
)
"""``partition(groups [k] int64 in [0, n), n) -> (order [k], counts [n])``: positions by group, stable within."""

hash_divide: Kernel[[Tensor, int, int, torch.dtype], Divided] = Kernel(
    "hash_divide",
    _hash_divide,
    cpu="omnizen.kernels.cpu.partition:hash_divide",
    gpu="omnizen.kernels.gpu.partition:hash_divide",
)
"""``hash_divide(rows [k] int64, n, seed, dtype) -> Divided``: ``partition(hash_owner(rows, n, seed), n)`` in one.

``dtype``, that of the divided rows, is int64, or int32 where every row is below 2^31.
"""


def divide(rows: Tensor, owner: Tensor, n: int) -> Divided:
    """Divide rows ``[k]`` by owners ``[k]`` int64 in ``[0, n)`` that are known already."""
    order, counts = partition(owner, n)
    return Divided(order, rows.index_select(0, order), counts)
