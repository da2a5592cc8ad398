"""Which rank owns a row, in one pass."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from omnizen.kernels.cpu.lanes import Array

_A, _B, _MASK = np.uint64(0x85EBCA6B), np.uint64(0xC2B2AE35), np.uint64(0xFFFFFFFF)
_13, _16, _32 = np.uint64(13), np.uint64(16), np.uint64(32)
_BLOCK = 2048


@njit(cache=True, nogil=True, inline="always")
def mix32(h):  # type: ignore[no-untyped-def]
    """Twin of ``kernels.owner.mix32``, of one unsigned number."""
    h ^= h >> _16
    h = (h * _A) & _MASK
    h ^= h >> _13
    h = (h * _B) & _MASK
    return h ^ (h >> _16)


@njit(cache=True, nogil=True)
def _owners(rows, n, seed, out):  # type: ignore[no-untyped-def]
    low = mix32(seed)
    for start in range(0, rows.size, _BLOCK):
        end = min(start + _BLOCK, rows.size)
        above = np.uint64(0)
        for i in range(start, end):
            above |= np.uint64(rows[i]) >> _32
        if above == np.uint64(0):  # no row has a high half: one hash a row, which runs on vectors
            for i in range(start, end):
                out[i] = (mix32(np.uint64(rows[i]) ^ low) * n) >> _32
        else:
            for i in range(start, end):
                row = np.uint64(rows[i])
                out[i] = (mix32((row & _MASK) ^ mix32((row >> _32) ^ seed)) * n) >> _32


def owners_into(rows: Array, n: int, seed: int, out: Array) -> None:
    """Write the owner of each row, int64, to ``out``, integers of any width that holds them."""
    _owners(rows, np.uint64(n), np.uint64(seed & 0xFFFFFFFF), out)


def hash_owner(rows: Tensor, n: int, seed: int) -> Tensor:
    """Twin of ``kernels.owner.hash_owner``."""
    out = np.empty(rows.numel(), np.int64)
    owners_into(rows.long().contiguous().numpy(), n, seed, out)
    return torch.from_numpy(out)
