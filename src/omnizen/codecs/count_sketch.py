"""A table of counters in place of a tensor: tables are added, and what they hold is added with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from omnizen.codecs.given import DTYPES, dtype_code, kind, packed_by
from omnizen.codecs.pipe import Pipeable
from omnizen.errors import UserError
from omnizen.kernels.merge import sum_dtype
from omnizen.kernels.sketch import mean_of, sketch
from omnizen.types import Dense, Packed, Payload, Sparsity, Step, hash_text

ROWS = 3
TABLE = 0.1


def columns_for(numel: int, rows: int, table: float) -> int:
    """Return the counters in a row for a table of this fraction of the elements."""
    return max(1, math.ceil(table * numel / rows))


def shared_hash(step: Step) -> int:
    """Return the seed of the hashes of a step: equal on all ranks, and another one in every step."""
    return hash_text(f"sketch/{step.shared_seed}/{step.n}/{step.name}") & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class CountSketch(Pipeable):
    """Add each element, with a random sign, to one counter in each row of a small table; linear both ways.

    Encoding is linear, and so is decoding by the mean of an element's counters: sums of tables hold sums of
    tensors, and no collision biases them. Saves all but ``table`` of the elements; costs noise from collisions of
    the order of the whole tensor's norm over the root of the columns, so that only elements above it can be told
    (``reducers/count_sketch.py`` looks for those).

    Args:
        rows: of counters.
        table: counters of all rows as a fraction of the elements.

    Reference: Charikar, Chen, Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002.
    """

    rows: int = ROWS
    table: float = TABLE
    name: ClassVar[str] = "sketch"
    takes: ClassVar[type[Payload]] = Dense
    gives: ClassVar[type[Payload]] = Packed
    summable: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    exact: ClassVar[bool] = False

    def encode(self, payload: Payload, step: Step) -> Packed:
        """Pack into one table; the hash's seed, type and shape go into the metadata."""
        x = kind(payload, Dense, self.name).values
        code, seed = dtype_code(x.dtype, self.name), shared_hash(step)
        flat = x.detach().reshape(-1).to(sum_dtype(x.dtype))
        table = sketch(flat, self.rows, columns_for(flat.numel(), self.rows, self.table), seed)
        return Packed((table,), (seed, code, *x.shape), self.name)

    def decode(self, payload: Payload) -> Dense:
        """Return every element's unbiased estimate."""
        packed = packed_by(payload, self.name)
        seed, dtype, *shape = packed.meta
        return Dense(mean_of(packed.streams[0], math.prod(shape), seed).to(DTYPES[dtype]).view(shape))

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the bytes of the table, twice."""
        size = self.rows * columns_for(pattern.num_rows * pattern.width, self.rows, self.table)
        return size * max(4, pattern.itemsize), size * max(4, pattern.itemsize)


def count_sketch(rows: int = ROWS, table: float = TABLE) -> CountSketch:
    """Make the codec of counters; see ``CountSketch``."""
    checked_table(rows, table)
    return CountSketch(rows, table)


def checked_table(rows: int, table: float) -> None:
    """Refuse a table that there cannot be.

    Raises:
        UserError: says what is allowed.
    """
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise UserError(f"count-sketch: rows must be a whole number of 1 or more, got {rows!r}")
    if not 0 < table <= 1:
        raise UserError(f"count-sketch: table is a fraction of the elements in (0, 1], got {table!r}")
