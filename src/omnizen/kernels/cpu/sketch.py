"""Count sketches in one pass for each row of counters."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from omnizen.kernels.cpu.owner import mix32
from omnizen.kernels.sketch import row_seed

_1, _32, _MASK32 = np.uint64(1), np.uint64(32), np.uint64(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def _add(flat, seeds, table):  # type: ignore[no-untyped-def]
    columns = np.uint64(table.shape[1])
    for row in range(seeds.size):
        seed = seeds[row]
        for i in range(flat.size):
            element = np.uint64(i)
            mixed = mix32((element & _MASK32) ^ mix32((element >> _32) ^ seed))
            column = np.int64((mixed * columns) >> _32)
            if mixed & _1:
                table[row, column] -= flat[i]
            else:
                table[row, column] += flat[i]


@njit(cache=True, nogil=True)
def _medians(table, seeds, out):  # type: ignore[no-untyped-def]
    rows, columns = seeds.size, np.uint64(table.shape[1])
    found = np.empty(rows, table.dtype)
    for i in range(out.size):
        element = np.uint64(i)
        broken = False
        for row in range(rows):
            mixed = mix32((element & _MASK32) ^ mix32((element >> _32) ^ seeds[row]))
            guess = table[row, np.int64((mixed * columns) >> _32)]
            if mixed & _1:
                guess = -guess
            broken = broken or np.isnan(guess)
            j = row
            while j > 0 and found[j - 1] > guess:
                found[j] = found[j - 1]
                j -= 1
            found[j] = guess
        out[i] = np.nan if broken else found[(rows - 1) // 2]


def _seeds(seed: int, rows: int) -> np.ndarray:
    return np.array([row_seed(seed, row) for row in range(rows)], np.uint64)


def sketch(flat: Tensor, rows: int, columns: int, seed: int) -> Tensor:
    """Twin of ``kernels.sketch.sketch``."""
    table = torch.zeros(rows, columns, dtype=flat.dtype)
    _add(flat.detach().contiguous().numpy(), _seeds(seed, rows), table.numpy())
    return table


def median_of(table: Tensor, numel: int, seed: int) -> Tensor:
    """Twin of ``kernels.sketch.median_of``."""
    out = torch.empty(numel, dtype=table.dtype)
    _medians(table.contiguous().numpy(), _seeds(seed, table.shape[0]), out.numpy())
    return out
