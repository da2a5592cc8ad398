"""Merge sorted lists with a small heap, then add the rows where they belong: values are read once, never copied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numba import njit
from torch import Tensor

from omnizen.kernels.merge import sum_dtype


@njit(cache=True, nogil=True)
def _plan(rows, starts, unique, place):  # type: ignore[no-untyped-def]
    """Fill unique rows and each entry's place among them (``-1 - place`` for a row's first entry)."""
    lists = starts.size - 1
    heap = np.empty(lists, np.int64)  # key = row * lists + list: one comparison orders rows, then lists
    cursor = starts[:-1].copy()
    size = 0
    for i in range(lists):
        if cursor[i] < starts[i + 1]:
            heap[size] = rows[cursor[i]] * lists + i
            j = size
            size += 1
            while j > 0 and heap[(j - 1) >> 1] > heap[j]:
                up = (j - 1) >> 1
                heap[up], heap[j] = heap[j], heap[up]
                j = up
    count, last = 0, np.int64(-1)
    while size > 0:
        key = heap[0]
        row, i = key // lists, key % lists
        if row != last:
            unique[count] = row
            place[cursor[i]] = -1 - count
            count, last = count + 1, row
        else:
            place[cursor[i]] = count - 1
        cursor[i] += 1
        if cursor[i] < starts[i + 1]:
            key = rows[cursor[i]] * lists + i
        else:
            size -= 1
            key = heap[size]
        j = 0
        while True:  # sift the new key down from the top
            child = 2 * j + 1
            if child >= size:
                break
            if child + 1 < size and heap[child + 1] < heap[child]:
                child += 1
            if heap[child] >= key:
                break
            heap[j] = heap[child]
            j = child
        if size > 0:
            heap[j] = key
    return count


@njit(cache=True, nogil=True)
def _add_rows(place, values, out):  # type: ignore[no-untyped-def]
    width = values.shape[1]
    for i in range(place.size):
        p = place[i]
        if p < 0:
            for d in range(width):
                out[-1 - p, d] = values[i, d]
        else:
            for d in range(width):
                out[p, d] += values[i, d]


def merge(indices: Sequence[Tensor], values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Twin of ``kernels.merge.merge``."""
    lengths = [i.numel() for i in indices]
    starts = np.cumsum([0, *lengths])
    rows = torch.cat(list(indices)).long().numpy()
    found, place = torch.empty(rows.size, dtype=torch.int64), np.empty(rows.size, np.int64)
    count = _plan(rows, starts, found.numpy(), place)
    dtype = sum_dtype(values[0].dtype)
    total = torch.empty(count, values[0].shape[1], dtype=dtype)
    for i, part in enumerate(values):
        if lengths[i]:
            _add_rows(place[starts[i] : starts[i + 1]], part.detach().to(dtype).contiguous().numpy(), total.numpy())
    return found[:count].clone(), total  # in torch's own memory, which autograd can resize when it adds to it
