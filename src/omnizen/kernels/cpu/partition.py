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
def _place(groups, rows, order, placed, counts):  # type: ignore[no-untyped-def]
    """Place two at a time: a cursor is then read before it was just written to less often, which stalls."""
    cursor = np.zeros(counts.size, np.int64)
    for i in range(groups.size):
        counts[groups[i]] += 1
    for g in range(1, counts.size):
        cursor[g] = cursor[g - 1] + counts[g - 1]
    for i in range(0, groups.size - 1, 2):
        a, b = groups[i], groups[i + 1]
        at = cursor[a]
        after = cursor[b] + (a == b)
        cursor[a] = at + 1
        cursor[b] = after + 1
        order[at], placed[at] = i, rows[i]
        order[after], placed[after] = i + 1, rows[i + 1]
    if groups.size % 2:
        last = groups.size - 1
        at = cursor[groups[last]]
        order[at], placed[at] = last, rows[last]


def partition(groups: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Twin of ``kernels.partition.partition``."""
    numbers = groups.contiguous().numpy()
    order, counts = np.empty(numbers.size, np.int64), np.zeros(n, np.int64)
    _place(numbers, numbers, order, scratch("placed", numbers.size, np.int64), counts)
    return torch.from_numpy(order), torch.from_numpy(counts)


def hash_divide(rows: Tensor, n: int, seed: int, dtype: torch.dtype) -> Divided:
    """Twin of ``kernels.partition.hash_divide``."""
    numbers = rows.contiguous().numpy()
    owners = scratch("owners", numbers.size, np.uint16 if n <= 2**16 else np.int64)
    owners_into(numbers, n, seed, owners)
    order, counts = np.empty(numbers.size, np.int64), np.zeros(n, np.int64)
    placed = np.empty(numbers.size, np.int32 if dtype == torch.int32 else np.int64)
    _place(owners, numbers, order, placed, counts)
    return Divided(torch.from_numpy(order), torch.from_numpy(placed), torch.from_numpy(counts))
