"""What codecs of ascending row numbers have in common: distances, checks, and values that travel as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.given import kind, packed_by
from omnizen.codecs.pipe import Pipeable
from omnizen.errors import UserError
from omnizen.types import Packed, Payload, Sparse, Sparsity, Step


def distances(rows: Sparse, who: str) -> Tensor:
    """Return how many rows are left out before each row that is there, ``[k]`` int64, each at least 0.

    Raises:
        UserError: indices do not ascend within ``[0, num_rows)``; a code of such distances would be read wrongly.

    Example:
        >>> distances(Sparse(torch.tensor([0, 1, 9]), torch.ones(3, 1), 10), "doc")
        tensor([0, 0, 7])
    """
    indices = rows.indices.long()
    skipped = torch.diff(indices, prepend=indices.new_full((1,), -1)) - 1
    if skipped.numel() and (int(skipped.min()) < 0 or int(indices[-1]) >= rows.num_rows):
        raise UserError(f"{who}: indices must ascend strictly within [0, {rows.num_rows})")
    return skipped


def rows_after(skipped: Tensor, num_rows: int, who: str) -> Tensor:
    """Return the rows that have these distances, ``[k]`` int64; the inverse of ``distances``.

    Raises:
        UserError: the rows do not lie in ``[0, num_rows)``: the payload is damaged.
    """
    rows = (skipped + 1).cumsum(0) - 1
    if rows.numel() and not 0 <= int(rows[-1]) < num_rows:
        raise UserError(f"{who}: damaged payload: it names row {int(rows[-1])} of {num_rows}")
    return rows


class Ordered(ABC, Pipeable):
    """An exact codec of rows. A subclass packs indices; values are the first stream, untouched."""

    __slots__ = ()
    name: ClassVar[str]
    takes: ClassVar[type[Payload]] = Sparse
    gives: ClassVar[type[Payload]] = Packed
    summable: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    @abstractmethod
    def pack(self, rows: Sparse) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Return streams, and the integers that unpacking needs."""

    @abstractmethod
    def unpack(self, streams: tuple[Tensor, ...], meta: tuple[int, ...], count: int, num_rows: int) -> Tensor:
        """Return ``count`` indices, ``[count]`` int64."""

    @abstractmethod
    def index_bytes(self, count: int, num_rows: int) -> tuple[float, float]:
        """Return the least and the most bytes of ``count`` indices."""

    def encode(self, payload: Payload, step: Step) -> Packed:
        """Pack into values and places."""
        del step  # the same in every step
        rows = kind(payload, Sparse, self.name)
        streams, meta = self.pack(rows)
        return Packed((rows.values.detach().contiguous(), *streams), (rows.num_rows, *meta), self.name)

    def decode(self, payload: Payload) -> Sparse:
        """Return the rows."""
        packed = packed_by(payload, self.name)
        values, *streams = packed.streams
        num_rows, *meta = packed.meta
        return Sparse(self.unpack(tuple(streams), tuple(meta), values.shape[0], num_rows), values, num_rows)

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the least and the most bytes of one encoded contribution."""
        values = pattern.rows * pattern.width * pattern.itemsize
        low, high = self.index_bytes(round(pattern.rows), pattern.num_rows)
        return values + low, values + high

    def mean_bytes(self, pattern: Sparsity) -> float:
        """Return the bytes of one encoded contribution whose rows lie at random."""
        values = pattern.rows * pattern.width * pattern.itemsize
        return values + self.mean_index_bytes(pattern.rows, pattern.num_rows)

    def mean_index_bytes(self, count: float, num_rows: int) -> float:
        """Return the bytes of ``count`` random indices: the middle of their range, unless it is known better."""
        return sum(self.index_bytes(round(count), num_rows)) / 2
