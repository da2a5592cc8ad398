"""Options that hold several values in one word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from omnizen.errors import UserError

N = TypeVar("N")


def words(text: str) -> list[str]:
    """Part a text at its commas.

    Example:
        >>> words("lm, cnn,")
        ['lm', 'cnn']
    """
    return [word.strip() for word in text.split(",") if word.strip()]


def some_words(text: str, option: str) -> list[str]:
    """Part a text at its commas; raises ``UserError`` that names the option where there is nothing between them."""
    found = words(text)
    if not found:
        raise UserError(f"{option} needs at least one name, got {text!r}; leave it out to consider all")
    return found


def numbers(text: str, option: str, kind: Callable[[str], N]) -> list[N]:
    """Part a text at its commas and read numbers; raises ``UserError`` that names the option."""
    try:
        return [kind(word) for word in words(text)]
    except ValueError:
        raise UserError(f"{option} needs comma-separated numbers, got {text!r}") from None


def dilation_factor(text: str) -> float | Literal["auto"]:
    """Read what ``--dilation`` was given."""
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--dilation is 'auto' or a number from 1, got {text!r}") from None
