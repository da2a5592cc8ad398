"""Only the rows that hold anything: for dense gradients of embeddings, which are mostly zero rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omnizen.codecs.given import kind
from omnizen.codecs.pipe import Pipeable
from omnizen.errors import UserError
from omnizen.kernels.nonzero_rows import nonzero_rows
from omnizen.kernels.rows_at import rows_at
from omnizen.types import Dense, Payload, Sparse, Sparsity, Step


@dataclass(frozen=True, slots=True)
class Rows(Pipeable):
    """Turn a dense matrix into its non-zero rows. Saves the zero rows; costs one pass over the matrix.

    A row that holds NaN is kept; a row of negative zeros comes back as zeros.

    Raises:
        UserError: for a tensor that is not a matrix.

    Example:
        >>> import torch; rows().encode(Dense(torch.tensor([[0.0, 0.0], [0.0, 2.0]])), Step(0)).indices
        tensor([1])
    """

    name: ClassVar[str] = "rows"
    takes: ClassVar[type[Payload]] = Dense
    gives: ClassVar[type[Payload]] = Sparse
    summable: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def encode(self, payload: Payload, step: Step) -> Sparse:
        """Keep the rows that are not zero."""
        del step  # the same in every step
        matrix = kind(payload, Dense, self.name).values
        if matrix.dim() != 2:
            raise UserError(f"rows: needs a matrix [num_rows, width], got shape {tuple(matrix.shape)}")
        kept = nonzero_rows(matrix)
        return Sparse(kept, rows_at(matrix.detach(), kept), matrix.shape[0])

    def decode(self, payload: Payload) -> Dense:
        """Return the whole matrix."""
        return Dense(kind(payload, Sparse, self.name).to_dense())

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the bytes of the kept rows with 8-byte indices, twice."""
        size = pattern.rows * (8 + pattern.width * pattern.itemsize)
        return size, size


def rows() -> Rows:
    """Make the codec that keeps a dense matrix's non-zero rows; see ``Rows``."""
    return Rows()
