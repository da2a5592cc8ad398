"""Distances between rows in whole bytes: fast, simple, and near what whole bytes can do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from omnizen.codecs.index.ordered import Ordered, distances, rows_after
from omnizen.kernels.byte_code import byte_decode, byte_encode, two_byte_limit
from omnizen.types import Sparse


def best_split(count: int, num_rows: int) -> int:
    """Return below which distance one byte is enough, so that ``count`` random rows take the fewest bytes.

    Example:
        >>> best_split(10_000, 1_000_000), best_split(1_000, 1_000_000)
        (252, 231)
    """
    if count == 0 or count >= num_rows:
        return 255
    rate = math.log1p(-count / num_rows)

    def extra_bytes(split: int) -> float:
        return math.exp(rate * split) + 2 * math.exp(rate * two_byte_limit(split))

    return min(range(1, 256), key=extra_bytes)


def longest(largest: int) -> int:
    """Return the most bytes that a number up to ``largest`` can take."""
    return 1 + max(1, -(-largest.bit_length() // 7))


def code_bytes(count: int, total: int, split: int) -> tuple[float, float]:
    """Return the least and the most bytes of ``count`` numbers that sum to ``total`` at most."""
    large = min(count, total // split)
    huge = min(count, total // two_byte_limit(split))
    return count, count + large + huge * (longest(total) - 2)


@dataclass(frozen=True, slots=True)
class DeltaVarint(Ordered):
    """Send rows' values and each distance to the row before in one byte, two, or more.

    How the 256 values of the first byte are shared between lengths follows from the density, which makes it
    shorter than the usual seven bits a byte: for random rows 8.0 bits an index at 10 %, 8.6 at 1 % (seven bits a
    byte: 10.2) and 14 at 0.1 %. Golomb's code is shorter (8.11 at 1 %) and as fast; bytes are what a general
    compressor behind it can work on.

    Example:
        >>> import torch; from omnizen.types import Step
        >>> rows = Sparse(torch.tensor([0, 9]), torch.ones(2, 3), num_rows=10)
        >>> delta_varint().encode(rows, Step(0)).streams[1]
        tensor([0, 8], dtype=torch.uint8)

    Reference: Xu et al., "DeepReduce", NeurIPS 2021 (delta coding of indices); the split of the first byte is ours.
    """

    name: ClassVar[str] = "delta-varint"

    def pack(self, rows: Sparse) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Return the bytes, and the split of the first byte."""
        skipped = distances(rows, self.name)
        split = best_split(skipped.numel(), rows.num_rows)
        return (byte_encode(skipped.cpu(), split).to(skipped.device),), (split,)

    def unpack(self, streams: tuple[Tensor, ...], meta: tuple[int, ...], count: int, num_rows: int) -> Tensor:
        """Return the indices."""
        data = streams[0]
        return rows_after(byte_decode(data.cpu(), meta[0], count).to(data.device), num_rows, self.name)

    def index_bytes(self, count: int, num_rows: int) -> tuple[float, float]:
        """Return the least and the most bytes of ``count`` indices."""
        return code_bytes(count, num_rows - count, best_split(count, num_rows))


def delta_varint() -> DeltaVarint:
    """Make the codec of rows with distances in bytes; see ``DeltaVarint``."""
    return DeltaVarint()
