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
