"""Which rank owns a row, in one pass."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

_A, _B, _MASK = np.uint64(0x85EBCA6B), np.uint64(0xC2B2AE35), np.uint64(0xFFFFFFFF)
_13, _16, _32 = np.uint64(13), np.uint64(16), np.uint64(32)


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
    for i in range(rows.size):
        row = np.uint64(rows[i])
        high = mix32((row >> _32) ^ seed)
        out[i] = np.int64((mix32((row & _MASK) ^ high) * n) >> _32)


def hash_owner(rows: Tensor, n: int, seed: int) -> Tensor:
    """Twin of ``kernels.owner.hash_owner``."""
    out = np.empty(rows.numel(), np.int64)
    _owners(rows.long().contiguous().numpy(), np.uint64(n), np.uint64(seed & 0xFFFFFFFF), out)
    return torch.from_numpy(out)
