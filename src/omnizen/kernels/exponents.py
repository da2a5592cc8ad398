"""Floats as signs with mantissas, and short codes for their exponents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from omnizen.errors import UserError
from omnizen.kernels.fields import pack_fields, unpack_fields
from omnizen.kernels.spec import Kernel


@dataclass(frozen=True, slots=True)
class Code:
    """How exponents are named: by how far they lie below ``top``.

    Code ``2^width - 1`` stands for an exponent that is written out, ``2^width - 2`` for zero; with as many bits as
    an exponent has, codes are exponents.

    Args:
        exponent: bits of an exponent.
        places: bits of a mantissa.
        width: bits of a code, at least 2.
        top: the exponent of code 0.
    """

    exponent: int
    places: int
    width: int
    top: int

    @property
    def full(self) -> bool:
        """Whether codes are exponents."""
        return self.width == self.exponent

    @property
    def integers(self) -> torch.dtype:
        """Type of the floats' bits."""
        return {16: torch.int16, 32: torch.int32, 64: torch.int64}[1 + self.exponent + self.places]


def _exponent_counts(bits: Tensor, exponent: int, places: int) -> Tensor:
    return torch.bincount((bits >> places) & ((1 << exponent) - 1), minlength=1 << exponent)


def _exponent_split(bits: Tensor, code: Code) -> tuple[Tensor, Tensor, Tensor]:
    wide = bits.long()
    exponents = (wide >> code.places) & ((1 << code.exponent) - 1)
    rest = (wide & ((1 << code.places) - 1)) | ((wide < 0).long() << code.places)
    codes, written = exponents, exponents[:0]
    if not code.full:
        codes = code.top - exponents
        outside = (codes < 0) | (codes >= (1 << code.width) - 2)
        codes = codes.masked_fill(outside, (1 << code.width) - 1).masked_fill(exponents == 0, (1 << code.width) - 2)
        written = exponents[outside & (exponents != 0)]
    pack = pack_fields
    return pack(rest, code.places + 1), pack(codes, code.width), written.to(torch.int16)


def _exponent_join(rest: Tensor, codes: Tensor, written: Tensor, code: Code, count: int) -> Tensor:
    exponents = named = unpack_fields(codes, code.width, count)
    if not code.full:
        exponents = (code.top - named).masked_fill(named == (1 << code.width) - 2, 0)
        outside = named == (1 << code.width) - 1
        if int(outside.sum()) != written.numel():
            raise damaged()
        exponents[outside] = written.long()
    fields = unpack_fields(rest, code.places + 1, count)
    bits = (fields & ((1 << code.places) - 1)) | (exponents << code.places)
    least = torch.iinfo(code.integers).min
    return torch.where((fields >> code.places).bool(), bits + least, bits).to(code.integers)


def damaged() -> UserError:
    """Return the error of streams that do not belong together."""
    return UserError("damaged payload: its codes do not fit the exponents written out")


exponent_counts: Kernel[[Tensor, int, int], Tensor] = Kernel(
    "exponent_counts", _exponent_counts, cpu="omnizen.kernels.cpu.exponents:exponent_counts"
)
"""``exponent_counts(bits [n], exponent, places) -> [2^exponent] int64``: how often each exponent occurs."""

exponent_split: Kernel[[Tensor, Code], tuple[Tensor, Tensor, Tensor]] = Kernel(
    "exponent_split", _exponent_split, cpu="omnizen.kernels.cpu.exponents:exponent_split"
)
"""``exponent_split(bits [n], code) -> (rest, codes, written)``.

``rest`` holds mantissa and sign of each float, ``code.places + 1`` bits; ``codes`` the codes, ``code.width`` bits;
both packed as by ``pack_fields``. ``written`` ``[w]`` int16 holds the exponents that have no code.
"""

exponent_join: Kernel[[Tensor, Tensor, Tensor, Code, int], Tensor] = Kernel(
    "exponent_join", _exponent_join, cpu="omnizen.kernels.cpu.exponents:exponent_join"
)
"""``exponent_join(rest, codes, written, code, count) -> [count]`` bits of the floats, the inverse of the split."""
