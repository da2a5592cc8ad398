"""What exact codecs of values have in common: any shape and type, and every bit back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.given import DTYPES, dtype_code, kind, packed_by
from omnizen.codecs.pipe import Pipeable
from omnizen.types import Dense, Packed, Payload, Sparsity, Step


class Lossless(ABC, Pipeable):
    """An exact codec of values. A subclass packs a flat list of them."""

    __slots__ = ()
    name: ClassVar[str]
    takes: ClassVar[type[Payload]] = Dense
    gives: ClassVar[type[Payload]] = Packed
    summable: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    @abstractmethod
    def pack(self, flat: Tensor) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Return streams, and the integers that unpacking needs, for ``[n]`` values."""

    @abstractmethod
    def unpack(self, streams: tuple[Tensor, ...], meta: tuple[int, ...], count: int, dtype: torch.dtype) -> Tensor:
        """Return ``count`` values, ``[count]`` of the type."""

    @abstractmethod
    def packed_bytes(self, count: int, itemsize: int) -> tuple[float, float]:
        """Return the least and the most bytes of ``count`` values."""

    def encode(self, payload: Payload, step: Step) -> Packed:
        """Pack into the streams of the method."""
        del step  # the same in every step
        x = kind(payload, Dense, self.name).values.detach()
        code = dtype_code(x.dtype, self.name)
        streams, meta = self.pack(x.reshape(-1).contiguous())
        return Packed(streams, (code, x.dim(), *x.shape, *meta), self.name)

    def decode(self, payload: Payload) -> Dense:
        """Return the tensor as it was."""
        packed = packed_by(payload, self.name)
        code, dims, *rest = packed.meta
        shape = torch.Size(rest[:dims])
        return Dense(self.unpack(packed.streams, tuple(rest[dims:]), shape.numel(), DTYPES[code]).view(shape))

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the least and the most bytes of one encoded tensor."""
        return self.packed_bytes(pattern.num_rows * pattern.width, pattern.itemsize)
