"""Orthonormal bases for low-rank reducers, equal on all ranks as long as their input is."""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.types import Step, hash_text


def orthonormal(x: Tensor) -> Tensor:
    """Return an orthonormal basis ``[rows, min(rows, columns)]`` of a matrix's columns; all NaN unless all finite.

    Columns that depend on others become arbitrary orthonormal ones: harmless, as what they stand for is found out
    from the gradient afterwards.
    """
    if not bool(torch.isfinite(x).all()):
        return torch.full_like(x[:, : x.shape[0]], float("nan"))
    return torch.linalg.qr(x).Q


def query(width: int, rank: int, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a random orthonormal ``[width, rank]`` that depends on the name alone."""
    rng = torch.Generator().manual_seed(hash_text(f"low rank/{name}"))
    return orthonormal(torch.randn(width, rank, generator=rng, dtype=torch.float64)).to(device, dtype)


def next_query(found: Tensor, before: Tensor, step: Step) -> Tensor:
    """Return the query of the next step: the basis of what was found, with fresh columns for those that died.

    A column that is zero, or depends on others, would find nothing ever again. What is not finite, or has fewer
    columns than the query, leaves the query as it was.

    Args:
        found: ``[width, rank]``, equal on all ranks.
        before: ``[width, rank]``, the query that led to it.
    """
    if found.shape != before.shape or not bool(torch.isfinite(found).all()):
        return before
    basis, triangle = torch.linalg.qr(found)
    weights = triangle.diagonal().abs()
    dead = weights <= weights.max() * torch.finfo(found.dtype).eps * found.shape[0]
    if not bool(dead.any()):
        return basis
    fresh = torch.randn(found.shape, generator=step.shared_rng(), dtype=torch.float64)
    return orthonormal(torch.where(dead, fresh.to(basis), basis))
