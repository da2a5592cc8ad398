"""Fewer bits a value: float16 or bfloat16 on the wire, sums in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.given import DTYPES, dtype_code, kind, packed_by
from omnizen.codecs.pipe import Pipeable
from omnizen.errors import UserError, nearest
from omnizen.types import Dense, Packed, Payload, Sparsity, Step

WIRE_DTYPES: dict[str, torch.dtype | None] = {"float32": None, "float16": torch.float16, "bfloat16": torch.bfloat16}


def checked_values(values: str, who: str) -> str:
    """Return a wire format's name unchanged; raises ``UserError`` when there is no such format."""
    if not isinstance(values, str) or values not in WIRE_DTYPES:
        raise UserError(f"{who}: wire format of values: {nearest(values, WIRE_DTYPES)}")
    return values


def wire_dtype(dtype: torch.dtype, values: str) -> torch.dtype:
    """Return the type that values of ``dtype`` travel in; ``"float32"`` sends them as they are."""
    chosen = WIRE_DTYPES[values]
    return dtype if chosen is None or torch.finfo(dtype).bits <= 16 else chosen


def narrow(x: Tensor, values: str) -> Tensor:
    """Cast for the wire. Finite values that would overflow become the largest finite one; inf and NaN stay.

    Example:
        >>> narrow(torch.tensor([1.0, 1e9, float("-inf"), float("nan")]), "float16").tolist()
        [1.0, 65504.0, -inf, nan]
    """
    dtype = wire_dtype(x.dtype, values)
    if dtype == x.dtype:
        return x
    low = x.to(dtype)
    overflowed = torch.isinf(low) & torch.isfinite(x)
    if bool(overflowed.any()):
        low = torch.where(overflowed, torch.copysign(torch.full_like(low, torch.finfo(dtype).max), low), low)
    return low


@dataclass(frozen=True, slots=True)
class Cast(Pipeable):
    """Send a dense tensor's values in 16 bits.

    Saves half of the bytes of float32. Costs precision: relative 2^-11 (float16, in 6e-5 ... 65504; below, absolute
    3e-8) or 2^-8 (bfloat16, over the whole range of float32). Overflow is clamped to the largest finite value, so
    that error feedback can still send the rest; inf and NaN arrive as they are.

    Args:
        values: ``"float16"`` or ``"bfloat16"``.

    Example:
        >>> codec = cast("bfloat16")
        >>> codec.decode(codec.encode(Dense(torch.tensor([1.0, -2.0])), Step(0))).values
        tensor([ 1., -2.])
    """

    values: str
    takes: ClassVar[type[Payload]] = Dense
    gives: ClassVar[type[Payload]] = Packed
    summable: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The codec's name in the catalogue."""
        return f"cast-{self.values}"

    def encode(self, payload: Payload, step: Step) -> Packed:
        """Pack into one stream; shape and type go into the metadata."""
        del step  # the same in every step
        x = kind(payload, Dense, self.name).values.detach()
        code = dtype_code(x.dtype, self.name)
        return Packed((narrow(x, self.values).reshape(-1),), (code, *x.shape), self.name)

    def decode(self, payload: Payload) -> Dense:
        """Return the tensor in its own type and shape."""
        packed = packed_by(payload, self.name)
        dtype, *shape = packed.meta
        return Dense(packed.streams[0].to(DTYPES[dtype]).view(shape))

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the bytes of one encoded tensor, twice."""
        size = pattern.num_rows * pattern.width * min(2, pattern.itemsize)
        return size, size


def cast(values: str = "bfloat16") -> Cast:
    """Make a codec that sends dense values in 16 bits; see ``Cast``."""
    if WIRE_DTYPES.get(values) is None:
        raise UserError(f"cast: wire format of values: {nearest(values, ('float16', 'bfloat16'))}")
    return Cast(values)
