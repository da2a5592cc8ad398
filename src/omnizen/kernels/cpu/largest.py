"""The k largest by a sample: a threshold just below the k-th, one pass, and a search among what that pass found.

The sample decides how much is searched, never what is found.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from omnizen.kernels.cpu.compaction import compact_into
from omnizen.kernels.cpu.lanes import Array, bits_dtype, magnitude_bits, no_sign
from omnizen.kernels.cpu.magnitudes import kth_magnitude, sample_magnitudes
from omnizen.kernels.cpu.scratch import scratch

HITS = 256
"""Elements of a sample that are among the k largest, on average: their spread is 6 %."""
SPARING = 64
"""At most one element in so many is sampled: each costs as much as reading a line of memory."""
SPREADS = 4.0
"""How many spreads of the sample the threshold is set too low, and elements on top for spreads of few."""


@njit(cache=True, nogil=True)
def _trim(bits, mask, least, ties, indices, kept, values):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(bits.size):
        size = bits[i] & mask
        take = size > least or (size == least and ties > 0)
        ties -= size == least
        kept[count] = indices[i]
        values[count] = bits[i]
        count += take


def largest(flat: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Twin of ``kernels.largest.largest``."""
    indices, bits = _candidates(flat, k)
    mask, infinite = no_sign(bits), magnitude_bits(math.inf, flat.dtype)
    sizes = bits & mask
    place = bits.size - k
    least = infinite if k == 0 else np.partition(sizes, place)[place] if place > 0 else bits.dtype.type(0)
    if least >= infinite:  # all that is not finite comes
        least, ties = infinite, bits.size
    else:
        ties = k - int((sizes > least).sum())
    count = int((sizes > least).sum()) + min(ties, int((sizes == least).sum()))
    kept, values = np.empty(count + 1, np.int64), np.empty(count + 1, bits.dtype)  # one more, to be overwritten
    _trim(bits, mask, least, ties, indices, kept, values)
    return torch.from_numpy(kept[:count]), torch.from_numpy(values[:count]).view(flat.dtype)


def _candidates(flat: Tensor, k: int) -> tuple[Array, Array]:
    """Return the k largest among a few others, or all that is not zero: indices, and values as bits."""
    n = flat.numel()
    samples = min(n // SPARING, math.ceil(HITS * n / k)) if k else 0
    hits = k * samples / max(1, n)
    place = math.ceil(hits + SPREADS * math.sqrt(hits) + SPREADS)
    if place < samples:
        least = kth_magnitude(sample_magnitudes(flat, samples, 0), place)
        found = _from(flat, least, int(1.25 * place * n / samples))
        if found[0].size >= k:
            return found
    return _from(flat, 0.0, n)


def _from(flat: Tensor, threshold: float, room: int) -> tuple[Array, Array]:
    while True:
        indices = scratch("indices", room, np.int64)
        values = scratch("values", room, bits_dtype(flat))
        count = compact_into(flat, threshold, indices, values)
        if count <= room:
            return indices[:count], values[:count]
        room = count
