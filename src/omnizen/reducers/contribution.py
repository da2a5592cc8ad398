"""From torch's gradients to contributions and back; what reducers ask of a contribution."""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.errors import UserError
from omnizen.kernels.nonzero_rows import nonzero_rows
from omnizen.kernels.rows_at import rows_at
from omnizen.types import Contribution, Dense, Sparse

MOST_ROWS = 2**48
"""So that a row number times a number of ranks is still an int64."""


def from_sparse_tensor(grad: Tensor) -> Sparse:
    """Turn a torch sparse gradient ``[num_rows, width]`` or ``[num_rows]`` into rows, each index once.

    Indices that occur several times (a word that a batch holds often) are added up: 512 ids out of 5 values
    become 5 rows.

    Raises:
        UserError: for a tensor that is not sparse COO with one sparse dimension.

    Example:
        >>> grad = torch.sparse_coo_tensor([[3, 1, 3]], torch.ones(3, 2), (5, 2), check_invariants=False)
        >>> from_sparse_tensor(grad).values.tolist()
        [[1.0, 1.0], [2.0, 2.0]]
    """
    if grad.layout != torch.sparse_coo or grad.sparse_dim() != 1 or grad.dense_dim() > 1:
        raise UserError(
            f"a row-sparse gradient is COO with one sparse dimension and rows of numbers, got layout {grad.layout} "
            f"of shape {tuple(grad.shape)}"
        )
    whole = grad.detach().coalesce()
    rows = whole.indices()[0]
    return Sparse(rows, whole.values().reshape(rows.numel(), grad.shape[1:].numel()), grad.shape[0])


def to_sparse_tensor(rows: Sparse, shape: torch.Size | None = None) -> Tensor:
    """Turn rows into a coalesced torch sparse tensor of ``shape``, ``[num_rows, width]`` unless given."""
    shape = torch.Size((rows.num_rows, rows.width)) if shape is None else shape
    values = rows.values if len(shape) == 2 else rows.values.view(-1)
    return torch.sparse_coo_tensor(rows.indices[None], values, shape, is_coalesced=True, check_invariants=False)


def from_dense_rows(grad: Tensor) -> Sparse:
    """Turn a dense gradient ``[num_rows, width]`` of mostly zero rows into its non-zero rows; NaN is not zero.

    Example:
        >>> from_dense_rows(torch.tensor([[0.0], [float("nan")], [0.0]])).indices.tolist()
        [1]
    """
    matrix = grad.detach()
    matrix = matrix.reshape(matrix.shape[0], matrix.shape[1:].numel())
    kept = nonzero_rows(matrix)
    return Sparse(kept, rows_at(matrix, kept), matrix.shape[0])


def as_tensor(x: Contribution) -> Tensor:
    """Return the values of a dense contribution, or all rows ``[num_rows, width]`` of a sparse one."""
    return x.values if isinstance(x, Dense) else x.to_dense()


def with_values(x: Contribution, values: Tensor) -> Contribution:
    """Return a contribution of the same kind, rows and layout with other values."""
    return Dense(values, x.layout) if isinstance(x, Dense) else Sparse(x.indices, values, x.num_rows)


def finite(error: Tensor) -> Tensor:
    """Return an error with zeros where it is NaN or infinite: what cannot be made good is not owed."""
    return torch.where(torch.isfinite(error), error, torch.zeros_like(error))


def checked(x: Contribution, takes: tuple[type[Contribution], ...], who: str) -> None:
    """Refuse what a reducer cannot reduce.

    Raises:
        UserError: for another kind of contribution, indices that are not strictly ascending or out of range, or
            values that are not one row an index.
    """
    if not isinstance(x, takes):
        allowed = " or ".join(kind.__name__ for kind in takes)
        raise UserError(f"{who} takes a {allowed} contribution, got {type(x).__name__}")
    tensors = [x.values] if isinstance(x, Dense) else [x.values, x.indices]
    if not all(isinstance(each, Tensor) for each in tensors):
        raise UserError(f"{who} takes tensors, got {', '.join(type(each).__name__ for each in tensors)}")
    if not x.values.is_floating_point():
        raise UserError(f"{who} averages floating-point values, got {x.values.dtype}")
    if isinstance(x, Dense):
        return
    if not isinstance(x.num_rows, int) or not 0 <= x.num_rows <= MOST_ROWS:
        raise UserError(f"{who}: num_rows must be in 0..2^48, got {x.num_rows!r}")
    rows = x.indices
    if rows.dtype != torch.int64 or rows.dim() != 1 or x.values.dim() != 2 or x.values.shape[0] != rows.numel():
        raise UserError(
            f"{who}: needs indices [k] int64 with values [k, width], got {tuple(rows.shape)} {rows.dtype} "
            f"with {tuple(x.values.shape)}"
        )
    if not rows.numel():
        return
    if not bool((rows[1:] > rows[:-1]).all()):
        raise UserError(f"{who}: indices must be strictly ascending; from_sparse_tensor adds up repeated rows")
    low, high = int(rows[0]), int(rows[-1])
    if low < 0 or high >= x.num_rows:
        raise UserError(f"{who}: indices must be in 0..{x.num_rows - 1}, got {low if low < 0 else high}")
