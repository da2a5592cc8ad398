"""Byte code in one pass each way: one to count the bytes, one to write them."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from omnizen.kernels.byte_code import ESCAPE, damaged, two_byte_limit
from omnizen.kernels.cpu.words import integers


@njit(cache=True, nogil=True)
def _length(numbers, split, limit):  # type: ignore[no-untyped-def]
    length = numbers.size
    for i in range(numbers.size):
        number = numbers[i]
        length += number >= split
        if number >= limit:
            rest = (number - limit) >> 7
            while rest:
                length += 1
                rest >>= 7
    return length


@njit(cache=True, nogil=True)
def _encode(numbers, split, limit, out):  # type: ignore[no-untyped-def]
    at = 0
    for i in range(numbers.size):
        number = numbers[i]
        if number < split:
            out[at] = number
            at += 1
        elif number < limit:
            out[at] = split + ((number - split) >> 8)
            out[at + 1] = (number - split) & 255
            at += 2
        else:
            out[at] = ESCAPE
            at += 1
            rest = number - limit
            while rest >= 128:
                out[at] = 128 | (rest & 127)
                at += 1
                rest >>= 7
            out[at] = rest
            at += 1


@njit(cache=True, nogil=True)
def _decode(data, split, limit, out):  # type: ignore[no-untyped-def]
    """Read numbers; return how many bytes they took, or -1 when the bytes end too early."""
    at, end = 0, data.size
    for i in range(out.size):
        if at >= end:
            return -1
        first = np.int64(data[at])
        at += 1
        if first < split:
            out[i] = first
        elif first < ESCAPE:
            if at >= end:
                return -1
            out[i] = split + ((first - split) << 8) + np.int64(data[at])
            at += 1
        else:
            number, shift, byte = limit, 0, np.int64(128)
            while byte >= 128 and shift < 63:
                if at >= end:
                    return -1
                byte = np.int64(data[at])
                at += 1
                number += (byte & 127) << shift
                shift += 7
            out[i] = number
    return at


def byte_encode(numbers: Tensor, split: int) -> Tensor:
    """Twin of ``kernels.byte_code.byte_encode``."""
    array, limit = integers(numbers), two_byte_limit(split)
    out = np.empty(_length(array, split, limit), np.uint8)
    _encode(array, split, limit, out)
    return torch.from_numpy(out)


def byte_decode(data: Tensor, split: int, count: int) -> Tensor:
    """Twin of ``kernels.byte_code.byte_decode``."""
    out = np.empty(count, np.int64)
    if _decode(integers(data), split, two_byte_limit(split), out) != data.numel():
        raise damaged(count)
    return torch.from_numpy(out)
