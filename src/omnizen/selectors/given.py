"""What a selector may be given, and what it gives back."""

from __future__ import annotations

import math

from torch import Tensor

from omnizen.codecs.given import DTYPES, checked_density, num_kept
from omnizen.errors import UserError
from omnizen.types import Sparse

__all__ = ["checked_count", "checked_density", "checked_flat", "checked_positive", "chosen", "num_kept"]


def checked_positive(value: float, setting: str, who: str) -> float:
    """Return a number unchanged; raises ``UserError`` when it is not above 0 and finite."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not known or not 0 < value < math.inf:
        raise UserError(f"{who}: {setting} must be above 0 and finite, got {value!r}")
    return float(value)


def checked_count(value: int, setting: str, who: str, low: int, high: int) -> int:
    """Return a whole number unchanged; raises ``UserError`` when it is not in ``low..high``."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UserError(f"{who}: {setting} must be a whole number in {low}..{high}, got {value!r}")
    return value


def checked_flat(flat: Tensor, who: str) -> Tensor:
    """Return a flat tensor without its graph.

    Raises:
        UserError: for anything but floating-point values ``[numel]``.
    """
    if not isinstance(flat, Tensor) or flat.dim() != 1:
        shape = tuple(flat.shape) if isinstance(flat, Tensor) else type(flat).__name__
        raise UserError(f"{who} selects from a flat tensor [numel], got {shape}")
    if flat.dtype not in DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise UserError(f"{who} selects from values of {allowed}; got {str(flat.dtype).removeprefix('torch.')}")
    return flat.detach()


def sparse(flat: Tensor, indices: Tensor, values: Tensor) -> Sparse:
    """Return elements ``[k]`` of ``flat`` at ascending indices as rows of width 1."""
    return Sparse(indices, values.view(-1, 1), flat.numel())


def chosen(flat: Tensor, indices: Tensor) -> Sparse:
    """Return the elements at ascending indices ``[k]`` int64, as they are."""
    return sparse(flat, indices, flat[indices])
