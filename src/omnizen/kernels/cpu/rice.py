"""Golomb-Rice code, a word at a time: quotients are found as the distances between set bits."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from omnizen.kernels.cpu.words import empty_words, integers, to_bytes, to_words
from omnizen.kernels.rice import damaged, unary_bits

_0, _1, _6, _58, _63, _64 = (np.uint64(n) for n in (0, 1, 6, 58, 63, 64))
_SEQUENCE = np.uint64(0x03F79D71B4CB0A89)  # of de Bruijn: its 64 windows of 6 bits all differ
_PLACE = np.zeros(64, np.uint64)
for _n in range(64):
    _PLACE[(int(_SEQUENCE) << _n & 0xFFFFFFFFFFFFFFFF) >> 58] = _n


@njit(cache=True, nogil=True)
def _encode(numbers, bits, low, high):  # type: ignore[no-untyped-def]
    """Write both streams; return the bits of the unary one."""
    mask = (_1 << bits) - _1
    held, fill, at, place = _0, _0, 0, _0
    for i in range(numbers.size):
        number = np.uint64(numbers[i])
        rest = number & mask
        place += number >> bits
        high[place >> _6] |= _1 << (place & _63)
        place += _1
        held |= rest << fill
        fill += bits
        if fill >= _64:
            low[at] = held
            at += 1
            fill -= _64
            held = rest >> (bits - fill)
    if fill > _0:
        low[at] = held
    return place


@njit(cache=True, nogil=True)
def _decode(low, high, bits, out):  # type: ignore[no-untyped-def]
    """Read numbers until either stream ends; return how many the unary stream holds (one more than fits if so)."""
    mask, at, i = (_1 << bits) - _1, _0, 0
    start = _0  # bit after the last set one
    for w in range(high.size):
        word, base = high[w], np.uint64(w) << _6
        while word:
            if i == out.size:
                return i + 1
            place = base + _PLACE[((word & (~word + _1)) * _SEQUENCE) >> _58]
            word &= word - _1
            at_word, shift = at >> _6, at & _63
            rest = ((low[at_word] >> shift) | ((low[at_word + _1] << _1) << (_63 - shift))) & mask
            out[i] = np.int64(((place - start) << bits) | rest)
            start = place + _1
            at += bits
            i += 1
    return i


def rice_encode(numbers: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Twin of ``kernels.rice.rice_encode``."""
    low, high = empty_words(numbers.numel() * bits), empty_words(unary_bits(numbers, bits))
    length = _encode(integers(numbers), np.uint64(bits), low, high)
    return to_bytes(low, numbers.numel() * bits), to_bytes(high, int(length))


def rice_decode(remainders: Tensor, unary: Tensor, bits: int, count: int) -> Tensor:
    """Twin of ``kernels.rice.rice_decode``."""
    if remainders.numel() != -(-count * bits // 8):
        raise damaged(count)
    out = np.empty(count, np.int64)
    if _decode(to_words(remainders), to_words(unary), np.uint64(bits), out) != count:
        raise damaged(count)
    return torch.from_numpy(out)
