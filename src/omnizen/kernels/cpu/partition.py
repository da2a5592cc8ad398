"""Sort rows into groups with one counting pass and one placing pass."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from omnizen.kernels.cpu.owner import owners_into
from omnizen.kernels.cpu.scratch import scratch
from omnizen.kernels.partition import Divided


@njit(cache=True, nogil=True)
def _place(groups, order, counts):  # type: ignore[no-untyped-def]
    """Go through both halves in turn, each with its own cursors: one cursor used twice running waits for itself."""
    size, n = groups.size, counts.size
    half = size // 2
    cursor = np.zeros((2, n), np.int64)
    for i in range(half):
        cursor[0, groups[i]] += 1
        cursor[1, groups[half + i]] += 1
    if size % 2:
        cursor[1, groups[size - 1]] += 1
    begin = 0
    for g in range(n):
        first, counts[g] = cursor[0, g], cursor[0, g] + cursor[1, g]
        cursor[0, g], cursor[1, g] = begin, begin + first
        begin += counts[g]
    for i in range(half):
        a, b = groups[i], groups[half + i]
        at, after = cursor[0, a], cursor[1, b]
        cursor[0, a], cursor[1, b] = at + 1, after + 1
        order[at], order[after] = i, half + i
    if size % 2:
        order[cursor[1, groups[size - 1]]] = size - 1


@njit(cache=True, nogil=True)
def _take(rows, order, out):  # type: ignore[no-untyped-def]
    for i in range(order.size):
        out[i] = rows[order[i]]


def partition(groups: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Twin of ``kernels.partition.partition``."""
    order, counts = np.empty(groups.numel(), np.int64), np.zeros(n, np.int64)
    _place(groups.contiguous().numpy(), order, counts)
    return torch.from_numpy(order), torch.from_numpy(counts)


def hash_divide(rows: Tensor, n: int, seed: int, dtype: torch.dtype) -> Divided:
    """Twin of ``kernels.partition.hash_divide``."""
    k = rows.numel()
    numbers = rows.contiguous().numpy()
    owners = scratch("owners", k, np.uint16 if n <= 2**16 else np.int64)
    owners_into(numbers, n, seed, owners)
    order, counts = np.empty(k, np.int64), np.zeros(n, np.int64)
    placed = np.empty(k, np.int32 if dtype == torch.int32 else np.int64)
    _place(owners, order, counts)
    _take(numbers, order, placed)  # apart from placing, which already writes to many places in turn
    return Divided(torch.from_numpy(order), torch.from_numpy(placed), torch.from_numpy(counts))
