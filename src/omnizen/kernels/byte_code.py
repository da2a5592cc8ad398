"""Non-negative integers in one byte where they are small, two where they are not, more where they are large."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from omnizen.errors import UserError
from omnizen.kernels.spec import Kernel

ESCAPE = 255
"""First byte of a number of three bytes or more."""


def two_byte_limit(split: int) -> int:
    """Return the least number that needs more than two bytes, when those below ``split`` take one."""
    return split + (ESCAPE - split) * 256


def _byte_encode(numbers: Tensor, split: int) -> Tensor:
    limit, out = two_byte_limit(split), bytearray()
    for number in numbers.tolist():
        if number < split:
            out.append(number)
        elif number < limit:
            out += bytes((split + (number - split >> 8), (number - split) & 255))
        else:
            out.append(ESCAPE)
            rest = number - limit
            while rest >= 128:
                out.append(128 | rest & 127)
                rest >>= 7
            out.append(rest)
    return torch.frombuffer(out, dtype=torch.uint8) if out else torch.empty(0, dtype=torch.uint8)


def _numbers(data: Iterator[int], split: int) -> Iterator[int]:
    for first in data:
        if first < split:
            yield first
        elif first < ESCAPE:
            yield split + (first - split << 8) + next(data)
        else:
            number, shift, byte = two_byte_limit(split), 0, 128
            while byte >= 128 and shift < 63:
                byte = next(data)
                number += (byte & 127) << shift
                shift += 7
            yield number


def _byte_decode(data: Tensor, split: int, count: int) -> Tensor:
    try:
        numbers = list(_numbers(iter(data.tolist()), split))
    except RuntimeError:  # a generator turns StopIteration, the end of the bytes within a number, into this
        raise damaged(count) from None
    if len(numbers) != count:
        raise damaged(count)
    return torch.tensor(numbers, dtype=torch.int64)


def damaged(count: int) -> UserError:
    """Return the error of bytes that do not hold what they should."""
    return UserError(f"damaged payload: its bytes do not hold {count} numbers")


byte_encode: Kernel[[Tensor, int], Tensor] = Kernel(
    "byte_encode", _byte_encode, cpu="omnizen.kernels.cpu.byte_code:byte_encode"
)
"""``byte_encode(numbers [k] int64 >= 0, split in 1..255) -> [b] uint8``, on the processor.

Numbers below ``split`` take one byte, those below ``two_byte_limit(split)`` two; from there on ``ESCAPE`` is
followed by the rest in groups of seven bits, lowest first, each byte but the last with its highest bit set.
"""

byte_decode: Kernel[[Tensor, int, int], Tensor] = Kernel(
    "byte_decode", _byte_decode, cpu="omnizen.kernels.cpu.byte_code:byte_decode"
)
"""``byte_decode(data [b] uint8, split, count) -> [count] int64``; ``UserError`` for bytes that hold others."""
