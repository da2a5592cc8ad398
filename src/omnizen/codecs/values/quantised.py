"""What codecs of values have in common: any shape and type, and values that are no numbers told apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.given import DTYPES, dtype_code, kind, packed_by
from omnizen.codecs.pipe import Pipeable
from omnizen.types import Dense, Packed, Payload, Sparsity, Step

Meta = tuple[int, ...]
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))


def split_odd(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Take out what is not finite: return the values with zeros there, and ``4 * place + which`` of each.

    Example:
        >>> split_odd(torch.tensor([1.0, float("inf"), float("nan")]))
        (tensor([1., 0., 0.]), tensor([5, 8]))
    """
    finite = torch.isfinite(flat)
    if bool(finite.all()):
        return flat, torch.empty(0, dtype=torch.int64, device=flat.device)
    places = (~finite).nonzero().view(-1)
    odd = flat[places]
    which = torch.where(torch.isnan(odd), 0, torch.where(odd > 0, 1, 2))
    return torch.where(finite, flat, 0), 4 * places + which


def join_odd(flat: Tensor, odd: Tensor) -> Tensor:
    """Put back what ``split_odd`` took out; writes into ``flat``."""
    if odd.numel():
        flat[odd >> 2] = torch.tensor(NOT_FINITE, dtype=flat.dtype, device=flat.device)[odd & 3]
    return flat


def blocks_of(flat: Tensor, size: int) -> Tensor:
    """Return values as ``[blocks, size]``, zeros behind the last; size 0 makes one block of all.

    Example:
        >>> blocks_of(torch.ones(3), 2)
        tensor([[1., 1.],
                [1., 0.]])
    """
    size = size or max(1, flat.numel())
    return torch.nn.functional.pad(flat, (0, -flat.numel() % size)).view(-1, size)


def num_blocks(count: int, size: int) -> int:
    """Return how many blocks ``blocks_of`` makes of ``count`` values."""
    return -(-count // (size or max(1, count)))


class Quantised(ABC, Pipeable):
    """A lossy codec of values. A subclass packs a flat list of finite numbers.

    Values that are not finite travel beside it, 8 bytes each, and arrive as they are. What a subclass gives back is
    clamped to the finite range of the type, so that rounding up never makes infinity.
    """

    __slots__ = ()
    name: ClassVar[str]
    takes: ClassVar[type[Payload]] = Dense
    gives: ClassVar[type[Payload]] = Packed
    summable: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    @abstractmethod
    def pack(self, flat: Tensor, step: Step) -> tuple[tuple[Tensor, ...], Meta]:
        """Return streams, and the integers that unpacking needs, for finite ``[n]`` float32 or float64 values."""

    @abstractmethod
    def unpack(self, streams: tuple[Tensor, ...], meta: Meta, count: int) -> Tensor:
        """Return ``count`` values, ``[count]``."""

    @abstractmethod
    def packed_bytes(self, count: int, itemsize: int) -> tuple[float, float]:
        """Return the least and the most bytes of ``count`` finite values."""

    def encode(self, payload: Payload, step: Step) -> Packed:
        """Pack into the streams of the method, and one for what is not finite."""
        x = kind(payload, Dense, self.name).values.detach()
        code = dtype_code(x.dtype, self.name)
        flat, odd = split_odd(x.reshape(-1).to(torch.float64 if x.dtype == torch.float64 else torch.float32))
        streams, meta = self.pack(flat, step)
        return Packed((*streams, odd), (code, x.dim(), *x.shape, *meta), self.name)

    def decode(self, payload: Payload) -> Dense:
        """Return the tensor in its own type and shape."""
        packed = packed_by(payload, self.name)
        *streams, odd = packed.streams
        code, dims, *rest = packed.meta
        shape, meta = torch.Size(rest[:dims]), tuple(rest[dims:])
        flat = self.unpack(tuple(streams), meta, shape.numel())
        most = torch.finfo(DTYPES[code]).max
        return Dense(join_odd(flat.clamp(-most, most).to(DTYPES[code]), odd).view(shape))

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the least and the most bytes of one encoded tensor of finite values."""
        return self.packed_bytes(pattern.num_rows * pattern.width, pattern.itemsize)


def scale_bytes(itemsize: int) -> int:
    """Return the bytes of a number that the method itself adds for values of this size."""
    return 8 if itemsize == 8 else 4
