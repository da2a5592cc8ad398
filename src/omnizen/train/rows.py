"""Between a parameter's ``.grad`` and what a reducer takes."""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.reducers.contribution import from_dense_rows, from_sparse_tensor
from omnizen.types import Sparse

HALF = (torch.float16, torch.bfloat16)
"""Gradients of these dtypes are summed in float32."""


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which gradients of ``dtype`` travel and are summed."""
    return torch.float32 if dtype in HALF else dtype.to_real()


def real(tensor: Tensor) -> Tensor:
    """Return a complex tensor's real and imaginary parts, ``[..., 2]``; others as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def like_param(values: Tensor, param: Tensor) -> Tensor:
    """Return averaged values (of ``real``'s shape) as the parameter has them, in fresh memory."""
    if not param.is_complex():
        return values.to(param.dtype, copy=True)
    return torch.view_as_complex(values.to(param.dtype.to_real(), copy=True).contiguous())


def row_shape(shape: torch.Size) -> tuple[int, int]:
    """Return (rows, elements in a row) of a parameter."""
    rows = shape[0] if len(shape) else 1
    return rows, shape[1:].numel()


def no_rows(like: Tensor) -> Sparse:
    """Return the contribution of a rank that did not touch the parameter."""
    rows, width = row_shape(like.shape)
    indices = torch.empty(0, dtype=torch.int64, device=like.device)
    return Sparse(indices, torch.empty(0, width, dtype=sum_dtype(like.dtype), device=like.device), rows)


def rows_of(grad: Tensor) -> Sparse:
    """Return the touched rows of a gradient, duplicates summed.

    Args:
        grad: sparse COO over the first dimension, or dense; a row of a dense gradient counts when any element
            is not zero (NaN is not zero).

    Example:
        >>> rows_of(torch.tensor([[0.0, 0.0], [1.0, 2.0]])).indices
        tensor([1])
    """
    if grad.dtype in HALF and grad.is_sparse:
        grad = grad.to(torch.float32)  # half rows cannot be added up on a CPU
    if grad.is_sparse and grad.sparse_dim() == 1 and grad.dense_dim() <= 1:
        return from_sparse_tensor(grad)
    dense = grad.to_dense() if grad.is_sparse else grad
    rows = from_dense_rows(real(dense).reshape(row_shape(real(dense).shape)))
    if grad.is_complex():
        return Sparse(rows.indices, dense.reshape(row_shape(grad.shape))[rows.indices], rows.num_rows)
    return Sparse(rows.indices, rows.values.to(sum_dtype(grad.dtype)), rows.num_rows)


def sparse_grad(rows: Sparse, like: Tensor) -> Tensor:
    """Return rows as a coalesced sparse COO tensor shaped like the parameter."""
    values = rows.values.to(like.dtype).reshape(len(rows.indices), *like.shape[1:])
    return torch.sparse_coo_tensor(
        rows.indices[None], values, like.shape, is_coalesced=True, check_invariants=False
    )
