"""Rows with their indices: 4 bytes an index wherever that is enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from omnizen.codecs.cast import checked_values, narrow
from omnizen.codecs.given import DTYPES, dtype_code, kind, packed_by
from omnizen.codecs.pipe import Pipeable
from omnizen.types import Packed, Payload, Sparse, Sparsity, Step


def index_dtype(num_rows: int) -> torch.dtype:
    """Return the type that row numbers travel in: int32 below 2^31 rows, else int64."""
    return torch.int32 if num_rows <= 2**31 else torch.int64


def index_bytes(num_rows: int) -> int:
    """Return the bytes of one row number on the wire, ``x``."""
    return index_dtype(num_rows).itemsize


@dataclass(frozen=True, slots=True)
class Coo(Pipeable):
    """Send each row as its index and its values: ``k (x + w D)`` bytes for k rows of D values.

    Saves everything but the rows that are there. The index costs a fraction ``x / (w D)`` on top: nothing for
    embeddings (1.6 % at D = 64), as much as the values for single elements.

    Args:
        values: ``"float32"`` sends values as they are, ``"float16"`` and ``"bfloat16"`` in 16 bits.

    Example:
        >>> import torch; rows = Sparse(torch.tensor([0, 9]), torch.ones(2, 3), num_rows=10)
        >>> packed = coo().encode(rows, Step(0)); packed.nbytes
        32
        >>> coo().decode(packed).indices
        tensor([0, 9])
    """

    values: str = "float32"
    name: ClassVar[str] = "coo"
    takes: ClassVar[type[Payload]] = Sparse
    gives: ClassVar[type[Payload]] = Packed
    summable: ClassVar[bool] = False

    @property
    def exact(self) -> bool:
        """Whether values travel as they are."""
        return self.values == "float32"

    @property
    def unbiased(self) -> bool:
        """Whether values travel as they are; rounding to nearest is not unbiased."""
        return self.exact

    def encode(self, payload: Payload, step: Step) -> Packed:
        """Pack into values and indices."""
        del step  # the same in every step
        rows = kind(payload, Sparse, self.name)
        code = dtype_code(rows.values.dtype, self.name)
        values = narrow(rows.values, self.values).contiguous()
        return Packed((values, rows.indices.to(index_dtype(rows.num_rows))), (rows.num_rows, code), self.name)

    def decode(self, payload: Payload) -> Sparse:
        """Return the rows, values in their own type."""
        packed = packed_by(payload, self.name)
        values, indices = packed.streams
        num_rows, dtype = packed.meta
        return Sparse(indices.long(), values.to(DTYPES[dtype]), num_rows)

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the bytes of one encoded contribution, twice."""
        size = pattern.rows * row_bytes(pattern, self.values)
        return size, size


def value_bytes(pattern: Sparsity, values: str) -> int:
    """Return the bytes of one row's values on the wire, ``w D``."""
    return pattern.width * (pattern.itemsize if values == "float32" else min(2, pattern.itemsize))


def row_bytes(pattern: Sparsity, values: str) -> int:
    """Return the bytes of one row on the wire, ``x + w D``."""
    return index_bytes(pattern.num_rows) + value_bytes(pattern, values)


def coo(values: str = "float32") -> Coo:
    """Make the codec of rows with indices; see ``Coo``."""
    return Coo(checked_values(values, "coo"))
