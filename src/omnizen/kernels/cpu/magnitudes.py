"""Counts, quantiles and moments of magnitudes at the speed of memory."""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from omnizen.kernels.cpu.lanes import bits_of, magnitude, magnitude_bits, no_sign
from omnizen.kernels.cpu.owner import mix32
from omnizen.kernels.magnitudes import NO_MOMENTS, Moments

_32 = np.uint64(32)
_REORDER = {"reassoc", "contract", "nsz"}
"""Sums may be taken in any order, which vectors need; NaN and infinity stay what they are."""
_ABREAST = 64


@njit(cache=True, nogil=True)
def _count(bits, mask, least):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(bits.size):
        count += bits[i] & mask >= least
    return count


@njit(cache=True, nogil=True)
def _peak(bits, mask, infinite):  # type: ignore[no-untyped-def]
    peak = infinite - infinite
    for i in range(bits.size):
        size = bits[i] & mask
        peak = max(peak, size if size < infinite else peak)
    return peak


@njit(cache=True, nogil=True)
def _places(n, seed, places):  # type: ignore[no-untyped-def]
    width, longer = n // places.size, n % places.size
    for i in range(places.size):
        within = (mix32(np.uint64(i) ^ seed) * np.uint64(width + (i < longer))) >> _32
        places[i] = i * width + min(i, longer) + np.int64(within)


@njit(cache=True, nogil=True)
def _take(bits, mask, places, out):  # type: ignore[no-untyped-def]
    for i in range(places.size):  # apart from the hashing, so that many reads are under way at once
        out[i] = bits[places[i]] & mask


@njit(cache=True, nogil=True, fastmath=_REORDER)
def _sums(x, least):  # type: ignore[no-untyped-def]
    """Count and sum what exceeds the threshold, and its square."""
    count, total, squares = 0, 0.0, 0.0
    for i in range(x.size):
        size = np.float64(abs(x[i]))
        some = (size >= least) & (size < np.inf)
        count += some
        over = size - least if some else 0.0
        total += over
        squares += over * over
    return count, total, squares


@njit(cache=True, nogil=True)
def _logs(x, least, factors):  # type: ignore[no-untyped-def]
    """Sum logarithms, one of each product of some magnitudes: a product must hold as a float64."""
    total = 0.0
    product = np.empty(_ABREAST)
    together = factors * _ABREAST
    for start in range(0, x.size, together):
        product[:] = 1.0
        for row in range(start, min(start + together, x.size), _ABREAST):
            for i in range(min(_ABREAST, x.size - row)):
                size = np.float64(abs(x[row + i]))
                product[i] *= size if (size >= least) & (size < np.inf) else 1.0
        for i in range(_ABREAST):
            total += math.log(product[i])
    return total


def count_from(flat: Tensor, threshold: float) -> int:
    """Twin of ``kernels.magnitudes.count_from``."""
    bits = bits_of(flat)
    return int(_count(bits, no_sign(bits), magnitude_bits(threshold, flat.dtype)))


def kth_magnitude(flat: Tensor, k: int) -> float:
    """Twin of ``kernels.magnitudes.kth_magnitude``."""
    bits = bits_of(flat)
    place = bits.size - k
    return magnitude(np.partition(bits & no_sign(bits), place)[place], flat.dtype)


def peak(flat: Tensor) -> float:
    """Twin of ``kernels.magnitudes.peak``."""
    bits = bits_of(flat)
    largest = _peak(bits, no_sign(bits), magnitude_bits(math.inf, flat.dtype))
    return magnitude(bits.dtype.type(largest), flat.dtype)


def sample_magnitudes(flat: Tensor, count: int, seed: int) -> Tensor:
    """Twin of ``kernels.magnitudes.sample_magnitudes``."""
    bits = bits_of(flat)
    places, out = np.empty(count, np.int64), np.empty(count, bits.dtype)
    _places(bits.size, np.uint64(seed & 0xFFFFFFFF), places)
    _take(bits, no_sign(bits), places, out)
    return torch.from_numpy(out).view(flat.dtype).nan_to_num_(float("inf"), float("inf"))


def moments(flat: Tensor, threshold: float, logs: bool) -> Moments:
    """Twin of ``kernels.magnitudes.moments``."""
    least = magnitude(magnitude_bits(threshold, flat.dtype), flat.dtype)
    wide = flat.detach() if flat.element_size() >= 4 else flat.detach().float()
    x = wide.contiguous().numpy()
    count, total, squares = _sums(x, least)
    if not count:
        return NO_MOMENTS
    over = total / count
    factors = 6 if x.dtype == np.float32 else 1  # (2^128)^6 and (2^-149)^6 are float64s
    mean_log = _logs(x, least, factors) / count if logs else 0.0
    return Moments(count, least + over, max(0.0, squares / count - over * over), mean_log)
