"""Work that can fail on one rank alone: every rank hears of it, so that none waits for a rank that gave up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from omnizen.errors import UserError

T = TypeVar("T")


def on_everyone(gather: Callable[[str], list[str]], work: Callable[[], T]) -> T:
    """Do some work that does not communicate, and go on only when it went well on all ranks (collective).

    Args:
        gather: gives every rank's text to every rank, in rank order.

    Raises:
        UserError: it failed on another rank; says on which and why. A rank's own error is raised as it is.

    Example:
        >>> on_everyone(lambda said: [said], lambda: 3)
        3
    """
    failed: Exception | None = None
    said = ""
    try:
        result = work()
    except Exception as error:  # raised again below, once the others have heard of it
        failed, said = error, f"{type(error).__name__}: {error}"
    texts = gather(said)
    if failed is not None:
        raise failed
    for rank, text in enumerate(texts):
        if text:
            raise UserError(f"rank {rank} cannot go on, so no rank does: {text}")
    return result
