"""Runs of rows that follow one another: for patterns in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.index.delta_varint import code_bytes
from omnizen.codecs.index.ordered import Ordered, distances
from omnizen.errors import UserError
from omnizen.kernels.byte_code import byte_decode, byte_encode
from omnizen.types import Sparse

SPLIT = 240
"""Lengths below it take one byte, those below 4,080 two."""


@dataclass(frozen=True, slots=True)
class RunLength(Ordered):
    """Send rows' values and, for each run of rows, how many are left out before it and how many follow on.

    Saves where rows come in blocks: two to four bytes a block, whatever its length. Costs two bytes a row and more
    where they stand alone.

    Example:
        >>> rows = Sparse(torch.tensor([2, 3, 4, 9]), torch.ones(4, 1), num_rows=10)
        >>> from omnizen.types import Step; run_length().encode(rows, Step(0)).streams[1].tolist()
        [2, 2, 4, 0]

    Reference: Xu et al., "DeepReduce", NeurIPS 2021, where run lengths are one of the index codecs.
    """

    name: ClassVar[str] = "run-length"

    def pack(self, rows: Sparse) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Return the bytes of left-out and following rows in turn, and the number of runs."""
        skipped = distances(rows, self.name)
        begins = skipped > 0
        begins[:1] = True
        first = begins.nonzero().view(-1)
        after = torch.cat([first[1:], first.new_full((min(1, first.numel()),), skipped.numel())])
        numbers = torch.stack([skipped[first], after - first - 1], 1).view(-1)
        return (byte_encode(numbers.cpu(), SPLIT).to(skipped.device),), (first.numel(),)

    def unpack(self, streams: tuple[Tensor, ...], meta: tuple[int, ...], count: int, num_rows: int) -> Tensor:
        """Return the indices."""
        data, runs = streams[0], meta[0]
        left_out, follow = byte_decode(data.cpu(), SPLIT, 2 * runs).to(data.device).view(runs, 2).unbind(1)
        lengths = follow + 1
        ends = (left_out + lengths).cumsum(0)
        if int(lengths.sum()) != count or (runs and int(ends[-1]) > num_rows):
            raise UserError(f"{self.name}: damaged payload: its runs do not hold {count} of {num_rows} rows")
        before = ends - lengths.cumsum(0)  # rows left out up to each run
        return torch.repeat_interleave(before, lengths) + torch.arange(count, device=data.device)

    def index_bytes(self, count: int, num_rows: int) -> tuple[float, float]:
        """Return the least and the most bytes of ``count`` indices: one run, or as many as there can be."""
        if not count:
            return 0, 0
        numbers = 2 * min(count, num_rows - count + 1)
        return 2, code_bytes(numbers, num_rows, SPLIT)[1]


def run_length() -> RunLength:
    """Make the codec of rows in runs; see ``RunLength``."""
    return RunLength()
