"""Sets of positions as bits, touching only the bytes there are."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor


@njit(cache=True, nogil=True)
def _set(positions, packed):  # type: ignore[no-untyped-def]
    for i in range(positions.size):
        packed[positions[i] >> 3] |= np.uint8(1 << (positions[i] & 7))


@njit(cache=True, nogil=True)
def _count(packed):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(packed.size):
        byte = packed[i]
        while byte:
            byte &= byte - 1
            count += 1
    return count


@njit(cache=True, nogil=True)
def _list(packed, out):  # type: ignore[no-untyped-def]
    k = 0
    for i in range(packed.size):
        if packed[i]:
            for bit in range(8):
                if packed[i] >> bit & 1:
                    out[k] = 8 * i + bit
                    k += 1


def pack_bits(positions: Tensor, length: int) -> Tensor:
    """Twin of ``kernels.bits.pack_bits``."""
    packed = np.zeros(-(-length // 8), np.uint8)
    _set(positions.contiguous().numpy(), packed)
    return torch.from_numpy(packed)


def unpack_bits(packed: Tensor) -> Tensor:
    """Twin of ``kernels.bits.unpack_bits``."""
    data = packed.contiguous().numpy()
    out = np.empty(_count(data), np.int64)
    _list(data, out)
    return torch.from_numpy(out)
