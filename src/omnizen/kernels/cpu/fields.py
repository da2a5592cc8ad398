"""Fields packed through one 64-bit register: one write a word, whatever the width."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from omnizen.kernels.cpu.words import empty_words, integers, to_bytes, to_words

_0, _1, _6, _63, _64 = np.uint64(0), np.uint64(1), np.uint64(6), np.uint64(63), np.uint64(64)


@njit(cache=True, nogil=True)
def _pack(fields, bits, words):  # type: ignore[no-untyped-def]
    held, fill, at = _0, _0, 0
    for i in range(fields.size):
        field = np.uint64(fields[i])
        held |= field << fill
        fill += bits
        if fill >= _64:
            words[at] = held
            at += 1
            fill -= _64
            held = field >> (bits - fill)  # what did not fit; bits - fill is at least 1
    if fill > _0:
        words[at] = held


@njit(cache=True, nogil=True)
def _unpack(words, bits, out):  # type: ignore[no-untyped-def]
    mask, at = (_1 << bits) - _1, _0
    for i in range(out.size):
        word, shift = at >> _6, at & _63
        out[i] = np.int64(((words[word] >> shift) | ((words[word + _1] << _1) << (_63 - shift))) & mask)
        at += bits


def pack_fields(fields: Tensor, bits: int) -> Tensor:
    """Twin of ``kernels.fields.pack_fields``."""
    words = empty_words(fields.numel() * bits)
    if bits:
        _pack(integers(fields), np.uint64(bits), words)
    return to_bytes(words, fields.numel() * bits)


def unpack_fields(packed: Tensor, bits: int, count: int) -> Tensor:
    """Twin of ``kernels.fields.unpack_fields``."""
    out = np.empty(count, np.int64)
    _unpack(to_words(packed), np.uint64(bits), out)
    return torch.from_numpy(out)
