"""Exponents split off and joined again, a float at a time."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from omnizen.kernels.cpu.words import empty_words, integers, to_bytes, to_words
from omnizen.kernels.exponents import Code, damaged

_0, _1, _6, _63, _64 = (np.uint64(n) for n in (0, 1, 6, 63, 64))


@njit(cache=True, nogil=True)
def _counts(bits, mask, places, out):  # type: ignore[no-untyped-def]
    for i in range(bits.size):
        out[(np.int64(bits[i]) >> places) & mask] += 1


@njit(cache=True, nogil=True)
def _split(bits, exponent, places, width, top, full, rest, codes, written):  # type: ignore[no-untyped-def]
    """Write the three streams; return how many exponents were written out."""
    e_mask, m_mask = (_1 << exponent) - _1, (_1 << places) - _1
    zero, escape = np.int64((_1 << width) - _1) - 1, np.int64((_1 << width) - _1)
    size = places + _1
    held_r, fill_r, at_r, held_c, fill_c, at_c, left = _0, _0, 0, _0, _0, 0, 0
    for i in range(bits.size):
        number = np.uint64(np.int64(bits[i]))
        field = (number & m_mask) | ((number >> _63) << places)
        held_r |= field << fill_r
        fill_r += size
        if fill_r >= _64:
            rest[at_r] = held_r
            at_r += 1
            fill_r -= _64
            held_r = field >> (size - fill_r)
        here = np.int64((number >> places) & e_mask)
        code = here
        if not full:
            code = top - here
            if here == 0:
                code = zero
            elif code < 0 or code >= zero:
                code = escape
                written[left] = here
                left += 1
        short = np.uint64(code)
        held_c |= short << fill_c
        fill_c += width
        if fill_c >= _64:
            codes[at_c] = held_c
            at_c += 1
            fill_c -= _64
            held_c = short >> (width - fill_c)
    if fill_r > _0:
        rest[at_r] = held_r
    if fill_c > _0:
        codes[at_c] = held_c
    return left


@njit(cache=True, nogil=True)
def _join(rest, codes, written, exponent, places, width, top, full, out):  # type: ignore[no-untyped-def]
    """Fill the floats' bits; return how many written exponents were used, or -1 when there are too few."""
    m_mask, c_mask, r_mask = (_1 << places) - _1, (_1 << width) - _1, (_1 << (places + _1)) - _1
    zero, escape = np.int64(c_mask) - 1, np.int64(c_mask)
    at_r, at_c, left = _0, _0, 0
    for i in range(out.size):
        word, shift = at_r >> _6, at_r & _63
        field = ((rest[word] >> shift) | ((rest[word + _1] << _1) << (_63 - shift))) & r_mask
        at_r += places + _1
        word, shift = at_c >> _6, at_c & _63
        code = np.int64(((codes[word] >> shift) | ((codes[word + _1] << _1) << (_63 - shift))) & c_mask)
        at_c += width
        here = code
        if not full:
            here = top - code
            if code == zero:
                here = np.int64(0)
            elif code == escape:
                if left == written.size:
                    return -1
                here = np.int64(written[left])
                left += 1
        bits = (field & m_mask) | (np.uint64(here) << places) | ((field >> places) << (places + exponent))
        out[i] = bits
    return left


def exponent_counts(bits: Tensor, exponent: int, places: int) -> Tensor:
    """Twin of ``kernels.exponents.exponent_counts``."""
    out = np.zeros(1 << exponent, np.int64)
    _counts(integers(bits), (1 << exponent) - 1, places, out)
    return torch.from_numpy(out)


def exponent_split(bits: Tensor, code: Code) -> tuple[Tensor, Tensor, Tensor]:
    """Twin of ``kernels.exponents.exponent_split``."""
    count = bits.numel()
    rest, codes, written = _room(count, code)
    exponent, places, width = np.uint64(code.exponent), np.uint64(code.places), np.uint64(code.width)
    left = _split(integers(bits), exponent, places, width, code.top, code.full, rest, codes, written)
    return (
        to_bytes(rest, count * (code.places + 1)),
        to_bytes(codes, count * code.width),
        torch.from_numpy(written[:left].copy()),
    )


def _room(count: int, code: Code):  # type: ignore[no-untyped-def]
    rest, codes = empty_words(count * (code.places + 1)), empty_words(count * code.width)
    return rest, codes, np.empty(0 if code.full else count, np.int16)


def exponent_join(rest: Tensor, codes: Tensor, written: Tensor, code: Code, count: int) -> Tensor:
    """Twin of ``kernels.exponents.exponent_join``."""
    out = torch.empty(count, dtype=code.integers)
    unsigned = out.numpy().view(f"u{code.integers.itemsize}")
    exponent, places, width = np.uint64(code.exponent), np.uint64(code.places), np.uint64(code.width)
    words = to_words(rest), to_words(codes), integers(written)
    if _join(*words, exponent, places, width, code.top, code.full, unsigned) != written.numel():
        raise damaged()
    return out
