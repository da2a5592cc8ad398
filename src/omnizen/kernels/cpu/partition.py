"""Sort rows into groups with one counting pass and one placing pass."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor


@njit(cache=True, nogil=True)
def _place(groups, order, counts):  # type: ignore[no-untyped-def]
    for i in range(groups.size):
        counts[groups[i]] += 1
    cursor = np.zeros(counts.size, np.int64)
    for g in range(1, counts.size):
        cursor[g] = cursor[g - 1] + counts[g - 1]
    for i in range(groups.size):
        order[cursor[groups[i]]] = i
        cursor[groups[i]] += 1


def partition(groups: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Twin of ``kernels.partition.partition``."""
    order, counts = np.empty(groups.numel(), np.int64), np.zeros(n, np.int64)
    _place(groups.contiguous().numpy(), order, counts)
    return torch.from_numpy(order), torch.from_numpy(counts)
