"""The nearest powers of two, one of them by chance: sign and exponent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.values.quantised import Meta, Quantised
from omnizen.kernels.fields import pack_fields, unpack_fields
from omnizen.types import Step

MANTISSA = {torch.float32: 23, torch.float64: 52}
EXPONENT = {torch.float32: 8, torch.float64: 11}
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


@dataclass(frozen=True, slots=True)
class Natural(Quantised):
    """Round each value to one of the two powers of two around it, by chance so that the mean is right.

    Saves all but 9 bits a value (sign and exponent of float32; 12 for float64). Costs at most an eighth of a
    value's square in variance, whatever the tensor. Needs no scale. Values of the top binade of their type round
    down.

    Example:
        >>> from omnizen.types import Dense; codec = natural()
        >>> codec.decode(codec.encode(Dense(torch.tensor([4.0, -0.5, 0.0])), Step(0))).values
        tensor([ 4.0000, -0.5000,  0.0000])

    Reference: Horvath et al., "Natural Compression for Distributed Deep Learning", MSML 2022.
    """

    name: ClassVar[str] = "natural"
    unbiased: ClassVar[bool] = True

    def pack(self, flat: Tensor, step: Step) -> tuple[tuple[Tensor, ...], Meta]:
        """Return signs and exponents."""
        places, width = MANTISSA[flat.dtype], EXPONENT[flat.dtype]
        bits = flat.contiguous().view(INTEGERS[flat.dtype])
        chance = torch.randint(0, 1 << places, flat.shape, generator=step.shared_rng(), dtype=bits.dtype)
        magnitude = bits & torch.iinfo(bits.dtype).max
        exponent = (magnitude + chance.to(bits.device)) >> places  # a carry is a step up, as likely as it is near
        exponent = exponent.clamp_(max=(1 << width) - 2)
        return (pack_fields(exponent | ((bits < 0).to(bits.dtype) << width), width + 1),), (width,)

    def unpack(self, streams: tuple[Tensor, ...], meta: Meta, count: int) -> Tensor:
        """Return powers of two."""
        dtype = next(dtype for dtype, width in EXPONENT.items() if width == meta[0])
        codes = unpack_fields(streams[0], meta[0] + 1, count)
        magnitude = ((codes & ((1 << meta[0]) - 1)) << MANTISSA[dtype]).to(INTEGERS[dtype]).view(dtype)
        return torch.where((codes >> meta[0]).bool(), -magnitude, magnitude)

    def packed_bytes(self, count: int, itemsize: int) -> tuple[float, float]:
        """Return the bytes of ``count`` values, twice."""
        size = -(-count * (12 if itemsize == 8 else 9) // 8)
        return size, size


def natural() -> Natural:
    """Make the codec of powers of two; see ``Natural``."""
    return Natural()
