"""Elements from a magnitude on: 32 are compared at once, and only those that are found are touched again."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from omnizen.kernels.cpu.lanes import LANES, Array, bits_dtype, bits_of, hits, lowest, magnitude_bits, no_sign

_ONE, _NONE = np.uint64(1), np.uint64(0)


@njit(cache=True, nogil=True)
def _find(bits, mask, least, indices, values):  # type: ignore[no-untyped-def]
    found, room, n = 0, indices.size, bits.size
    whole = n - n % LANES
    for start in range(0, whole, LANES):
        word = hits(bits, start, mask, least)
        while word != _NONE:
            i = start + np.int64(lowest(word))
            if found < room:
                indices[found] = i
                values[found] = bits[i]
            found += 1
            word &= word - _ONE
    for rest in range(whole, n):
        if bits[rest] & mask >= least:
            if found < room:
                indices[found] = rest
                values[found] = bits[rest]
            found += 1
    return found


def compact_into(flat: Tensor, threshold: float, indices: Array, values: Array) -> int:
    """Write what ``compact`` finds to ``indices`` int64 and, as bits, to ``values``; return how much there is."""
    bits = bits_of(flat)
    return int(_find(bits, no_sign(bits), magnitude_bits(threshold, flat.dtype), indices, values))


def compact(flat: Tensor, threshold: float, room: int) -> tuple[Tensor, Tensor, int]:
    """Twin of ``kernels.compaction.compact``."""
    indices, values = np.empty(room, np.int64), np.empty(room, bits_dtype(flat))
    count = compact_into(flat, threshold, indices, values)
    kept = min(count, room)
    return torch.from_numpy(indices[:kept]), torch.from_numpy(values[:kept]).view(flat.dtype), count
