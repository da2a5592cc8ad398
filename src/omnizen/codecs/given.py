"""What a codec may be given: the right kind of payload, made by the right codec, of a type it knows."""

from __future__ import annotations

from typing import TypeVar

import torch

from omnizen.errors import UserError
from omnizen.types import Packed, Payload

P = TypeVar("P", bound=Payload)

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Types a payload's values may have; a payload's metadata holds the place in this list."""


def kind(payload: Payload, wanted: type[P], who: str) -> P:
    """Return the payload if it is of the wanted kind.

    Raises:
        UserError: it is not; says what the codec takes.
    """
    if not isinstance(payload, wanted):
        raise UserError(f"{who} takes a {wanted.__name__} payload, got {type(payload).__name__}")
    return payload


def packed_by(payload: Payload, who: str) -> Packed:
    """Return the payload if this codec packed it.

    Raises:
        UserError: another codec did, or none; its streams would be read as what they are not.
    """
    packed = kind(payload, Packed, who)
    if packed.codec != who:
        raise UserError(f"{who} was given to unpack what {packed.codec} packed")
    return packed


def dtype_code(dtype: torch.dtype, who: str) -> int:
    """Return the number that stands for a type in metadata.

    Raises:
        UserError: values of this type are not packed.
    """
    if dtype not in DTYPES:
        allowed = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        raise UserError(f"{who} packs values of {allowed}; got {str(dtype).removeprefix('torch.')}")
    return DTYPES.index(dtype)


def checked_density(density: float, who: str) -> float:
    """Return a kept fraction unchanged; raises ``UserError`` when it is not in (0, 1].

    Example:
        >>> checked_density(0.01, "top-k")
        0.01
    """
    known = isinstance(density, (int, float)) and not isinstance(density, bool)
    if not known or not 0 < density <= 1:  # NaN is refused too
        raise UserError(f"{who}: density is the fraction that is kept, above 0 and at most 1; got {density!r}")
    return float(density)


def num_kept(density: float, numel: int) -> int:
    """Return how many elements of ``numel`` are kept: ``max(1, round(density numel))``, and 0 of 0.

    Example:
        >>> num_kept(0.01, 1000), num_kept(0.01, 3), num_kept(0.5, 0)
        (10, 1, 0)
    """
    return min(numel, max(1, round(density * numel)))
