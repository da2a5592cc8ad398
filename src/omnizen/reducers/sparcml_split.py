"""Split all-gather: each rank sums one range of the rows, and everybody gathers all ranges."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch

from omnizen.codecs.cast import checked_values, wire_dtype
from omnizen.codecs.coo import Coo, index_bytes, row_bytes, value_bytes
from omnizen.kernels.nonzero_rows import nonzero_rows
from omnizen.kernels.partition import divide
from omnizen.protocols import Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.bases import WireFormat
from omnizen.reducers.contribution import checked
from omnizen.reducers.owned import averaged, by_owner, less_rounding
from omnizen.reducers.ranges import bounds, range_of, rows_by_range
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Parts, Reduced, Sparse, Sparsity, State, Step, Traffic


@dataclass(frozen=True, slots=True)
class SparCmlSplit(WireFormat):
    """Send rows to the owner of their range, who adds them up and sends the sum to all.

    The owner of range j receives ``(n - 1) |I_j|`` rows and everybody ``|U| - |U_j|``: balanced only where the
    rows are. With rows sorted by frequency, as words are, the first range holds most of them, and its owner
    receives up to ``(n - 1) k`` of k rows; the paper's bound of k counts what a rank sends.

    Args:
        dense: a range whose sum would be larger as rows than as a whole (``k (x + w D) >= rows w D``) travels
            whole; such rows come back only where they are not zero.
        values: ``"float32"`` sends values as they are, ``"float16"`` and ``"bfloat16"`` 16 bits of them; the owner
            counts the rounding of its averages as not sent.

    Reference: Renggli et al., "SparCML", SC 2019 (SSAR_Split_allgather; with ``dense`` DSAR_Split_allgather, which
    always sends whole ranges, at its switching point).
    """

    dense: bool = False
    values: str = "float32"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Sparse,)

    @property
    def name(self) -> str:
        """The scheme's name in plans."""
        return "sparcml-split-dense" if self.dense else "sparcml-split"

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin the split; the gathering begins when the result is waited for."""
        checked(x, self.takes, self.name)
        assert isinstance(x, Sparse)
        begins = bounds(x.num_rows, comm.size)
        with span("encode", step.name):
            divided = divide(x.indices, range_of(x.indices, x.num_rows, comm.size), comm.size)
            parts, low = by_owner(x, divided, self.values)
        push = comm.all_to_all(parts)

        def finish() -> Reduced:
            received = push.wait()
            with span("decode", step.name):
                mean = averaged(received, x)
            with span("encode", step.name):
                packed = Coo(self.values).encode(mean, step)
                first, end = begins[comm.rank], begins[comm.rank + 1]
                values, rows = packed.streams
                if self._whole(mean, end - first):
                    at = mean.indices - first
                    values = values.new_zeros(end - first, x.width).index_copy_(0, at, values)
                    rows = rows[:0]
            gathered = comm.all_gather([values, rows]).wait()
            with span("decode", step.name):
                value = _assembled(gathered, begins, x)
                sent = None
                if low is not None:
                    sent = less_rounding(x, low, mean, Coo(self.values).decode(packed), comm.size)
            return Reduced(value, sent, state)

        return Later(finish)

    def _whole(self, mean: Sparse, range_rows: int) -> bool:
        row_values = mean.width * wire_dtype(mean.values.dtype, self.values).itemsize
        as_rows = mean.indices.numel() * (index_bytes(mean.num_rows) + row_values)
        return self.dense and range_rows > 0 and as_rows >= range_rows * row_values

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at the busiest rank, from the rows in each rank's range."""
        a_row = row_bytes(pattern, self.values)
        own, union = rows_by_range(pattern, size, size)
        pulls = [rows * a_row for rows in union]
        if self.dense:
            whole = pattern.num_rows / size * value_bytes(pattern, self.values)
            pulls = [min(pull, whole) for pull in pulls]
        return wire_cost.owners([rows * a_row for rows in own], pulls)


def _assembled(gathered: list[Parts], begins: list[int], x: Sparse) -> Contribution:
    """Join the ranges; rows of whole ones that hold nothing but zeros are left out, unless all ranges are whole."""
    dtype, whole = x.values.dtype, [not rows.numel() and len(values) > 0 for values, rows in gathered]
    empty = [first == end for first, end in itertools.pairwise(begins)]
    if any(whole) and all(a or b for a, b in zip(whole, empty, strict=True)):
        return Dense(torch.cat([values for values, _ in gathered]).to(dtype))
    rows, kept = [], []
    for (values, indices), is_whole, first in zip(gathered, whole, begins[:-1], strict=True):
        at = nonzero_rows(values) if is_whole else None
        rows.append(indices.long() if at is None else at + first)
        kept.append(values if at is None else values[at])
    return Sparse(torch.cat(rows), torch.cat(kept).to(dtype), x.num_rows)


def sparcml_split(dense: bool = False, values: str = "float32") -> SparCmlSplit:
    """Make the split all-gather; see ``SparCmlSplit``."""
    return SparCmlSplit(dense, checked_values(values, "sparcml-split"))
