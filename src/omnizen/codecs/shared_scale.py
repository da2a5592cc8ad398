"""Whole numbers of one byte on a scale that everybody knows: they may be added as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from omnizen.codecs.given import DTYPES, dtype_code, kind, packed_by
from omnizen.codecs.pipe import Pipeable
from omnizen.errors import UserError
from omnizen.kernels.merge import sum_dtype
from omnizen.types import Dense, Packed, Payload, Sparsity, Step

MOST = 127


@dataclass(frozen=True, slots=True)
class SharedScaleInt8(Pipeable):
    """Round to ``floor(127 / addends)`` levels either side of zero, in one signed byte that holds sums.

    Saves 3/4 of float32; costs precision, and everything beyond the scale is cut. The scale is agreed beforehand
    (``reducers/shared_scale.py`` agrees on it in every step, and chooses the bits by the number of ranks). NaN and
    infinity, which whole numbers cannot be, travel in a number of their own and make the whole tensor NaN.

    Args:
        scale: largest magnitude, equal wherever payloads meet.
        addends: payloads that may be added without overflow, 1 to 127.

    Reference: Li et al., "THC", NSDI 2024.
    """

    scale: float = 1.0
    addends: int = 2
    name: ClassVar[str] = "shared-scale-int8"
    takes: ClassVar[type[Payload]] = Dense
    gives: ClassVar[type[Payload]] = Packed
    summable: ClassVar[bool] = True
    unbiased: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    @property
    def levels(self) -> int:
        """Levels either side of zero."""
        return MOST // self.addends

    def encode(self, payload: Payload, step: Step) -> Packed:
        """Pack into bytes and a zero that is NaN where something was not finite."""
        del step  # the same in every step
        x = kind(payload, Dense, self.name).values
        code = dtype_code(x.dtype, self.name)
        flat = x.detach().reshape(-1).to(sum_dtype(x.dtype))
        known = torch.isfinite(flat)
        numbers = (
            torch.where(known, flat / self.scale * self.levels, 0.0).round_().clamp_(-self.levels, self.levels)
        )
        taint = torch.where(known.all(), 0.0, float("nan")).to(torch.float32).view(1)
        return Packed((numbers.to(torch.int8), taint), (code, *x.shape), self.name)

    def decode(self, payload: Payload) -> Dense:
        """Return the numbers on their scale, in the tensor's own type and shape."""
        packed = packed_by(payload, self.name)
        numbers, taint = packed.streams
        dtype, *shape = packed.meta
        wide = sum_dtype(DTYPES[dtype])
        values = numbers.to(wide) * (self.scale / self.levels) + taint.to(wide)
        return Dense(values.to(DTYPES[dtype]).view(shape))

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the bytes of one encoded tensor, twice."""
        size = pattern.num_rows * pattern.width + 4
        return size, size


def shared_scale_int8(scale: float = 1.0, addends: int = 2) -> SharedScaleInt8:
    """Make the codec of bytes on a known scale; see ``SharedScaleInt8``.

    Raises:
        UserError: for a scale that is no finite number above 0, or more addends than a byte holds.
    """
    if not 0 < scale < float("inf"):
        raise UserError(f"shared-scale-int8: scale must be a finite number above 0, got {scale!r}")
    if isinstance(addends, bool) or not isinstance(addends, int) or not 1 <= addends <= MOST:
        raise UserError(f"shared-scale-int8: addends must be in 1..{MOST}, got {addends!r}")
    return SharedScaleInt8(float(scale), addends)
