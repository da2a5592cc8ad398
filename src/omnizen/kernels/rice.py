"""Golomb-Rice code of non-negative integers, quotients and remainders in streams of their own.

The quotient of a number by 2^bits is written in unary (that many zeros, then a one), the remainder in ``bits``
bits. Apart they take as many bits as together, and unpacking needs no step that waits for the one before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.errors import UserError
from omnizen.kernels.bits import pack_bits, unpack_bits
from omnizen.kernels.fields import pack_fields, unpack_fields
from omnizen.kernels.spec import Kernel


def unary_bits(numbers: Tensor, bits: int) -> int:
    """Return an upper bound for the bits of the quotients, without looking at each."""
    return (int(numbers.sum()) >> bits) + numbers.numel()


def _rice_encode(numbers: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    quotients = numbers >> bits
    ones = quotients.cumsum(0) + torch.arange(numbers.numel(), device=numbers.device)
    length = int(ones[-1]) + 1 if ones.numel() else 0
    remainders = pack_fields.run("reference", numbers & ((1 << bits) - 1), bits)
    return remainders, pack_bits.run("reference", ones, length)


def _rice_decode(remainders: Tensor, unary: Tensor, bits: int, count: int) -> Tensor:
    ones = unpack_bits.run("reference", unary)
    if ones.numel() != count or remainders.numel() != -(-count * bits // 8):
        raise damaged(count)
    quotients = torch.diff(ones, prepend=ones.new_full((1,), -1)) - 1
    return (quotients << bits) | unpack_fields.run("reference", remainders, bits, count)


def damaged(count: int) -> UserError:
    """Return the error of streams that do not hold what they should."""
    return UserError(f"damaged payload: its bits do not hold {count} numbers")


rice_encode: Kernel[[Tensor, int], tuple[Tensor, Tensor]] = Kernel(
    "rice_encode", _rice_encode, cpu="omnizen.kernels.cpu.rice:rice_encode"
)
"""``rice_encode(numbers [k] int64 >= 0, bits) -> (remainders [ceil(k bits / 8)] uint8, unary [u] uint8)``."""

rice_decode: Kernel[[Tensor, Tensor, int, int], Tensor] = Kernel(
    "rice_decode", _rice_decode, cpu="omnizen.kernels.cpu.rice:rice_decode"
)
"""``rice_decode(remainders, unary, bits, count) -> [count] int64``; ``UserError`` for streams that hold others."""
