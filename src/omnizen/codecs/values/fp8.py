"""Eight-bit floats with a shared power of two a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.values.quantised import Meta, Quantised, blocks_of, num_blocks
from omnizen.errors import UserError, nearest
from omnizen.types import Step

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
LARGEST = {"e4m3": 9, "e5m2": 16}
"""The largest finite number is 0.875 times two to this power: 448 and 57,344."""


@dataclass(frozen=True, slots=True)
class Fp8(Quantised):
    """Send each value as an 8-bit float, times a power of two that its block shares.

    Saves three quarters of float32 (8.125 bits a value with blocks of 128). Costs a relative error of 2^-4 (e4m3,
    down to 2^-15 of the block's largest value) or 2^-3 (e5m2, down to 2^-30); smaller values lose bits, then
    vanish.

    Args:
        format: ``"e4m3"`` or ``"e5m2"``.
        block: values that share a power of two; 0 for all.

    Example:
        >>> from omnizen.types import Dense; codec = fp8()
        >>> codec.decode(codec.encode(Dense(torch.tensor([256.0, 3.0])), Step(0))).values
        tensor([256.,   3.])

    Reference: Micikevicius et al., "FP8 Formats for Deep Learning", arXiv:2209.05433; shared powers of two as in
    Rouhani et al., "Microscaling Data Formats for Deep Learning", arXiv:2310.10537.
    """

    format: str
    block: int
    name: ClassVar[str] = "fp8"
    unbiased: ClassVar[bool] = False

    def pack(self, flat: Tensor, step: Step) -> tuple[tuple[Tensor, ...], Meta]:
        """Return a byte a value, and an exponent a block."""
        del step  # rounding is to nearest
        blocks = blocks_of(flat, self.block)
        mantissa, exponent = torch.frexp(blocks.abs().amax(1))
        exponent = exponent - LARGEST[self.format] + (mantissa > 0.875).int()
        small = (blocks.double() * power_of_two(-exponent)[:, None]).float().to(FORMATS[self.format])
        small = small.view(torch.uint8).view(-1)[: flat.numel()].contiguous()
        return (small, exponent.to(torch.int16)), ()

    def unpack(self, streams: tuple[Tensor, ...], meta: Meta, count: int) -> Tensor:
        """Return bytes as numbers, times their powers of two."""
        del meta
        small, exponents = streams
        blocks = blocks_of(small.view(FORMATS[self.format]).double(), self.block)
        return (blocks * power_of_two(exponents)[:, None]).view(-1)[:count]

    def packed_bytes(self, count: int, itemsize: int) -> tuple[float, float]:
        """Return the bytes of ``count`` values, twice."""
        del itemsize  # the same for every type
        size = count + 2 * num_blocks(count, self.block)
        return size, size


def power_of_two(exponents: Tensor) -> Tensor:
    """Return two to these powers in float64; those beyond its range are cut off at its ends."""
    return ((exponents.long().clamp(-1022, 1023) + 1023) << 52).view(torch.float64)  # ldexp works in float32


def fp8(format: str = "e4m3", block: int = 128) -> Fp8:
    """Make the codec of 8-bit floats; see ``Fp8``."""
    if format not in FORMATS:
        raise UserError(f"fp8: format: {nearest(format, FORMATS)}")
    if block < 0:
        raise UserError(f"fp8: block must be 0 or more, got {block}")
    return Fp8(format, block)
