"""How many local steps each rank takes in a round: given, or in proportion to measured speeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from omnizen.errors import UserError

FIRST = 4
"""Local steps of all ranks in the first round, from which speeds are measured."""
WEIGHT_OF_NEW = 0.5
"""How much a round's measured speed counts beside those before."""
CHANGE = 0.2
"""Relative departure of a rank's best number of steps from which numbers change."""


class StepCounts:
    """Each rank's local steps of the round under way; equal on all ranks, as it is told the same.

    Args:
        every: one number for all, one for each rank, or "speed".
        most: steps of the fastest rank with "speed".

    Raises:
        UserError: not one number for each rank.

    Example:
        >>> counts = StepCounts("speed", 2, most=8)
        >>> counts.tell([0.1, 0.4]), counts.now
        (True, (8, 2))
    """

    def __init__(self, every: int | tuple[int, ...] | Literal["speed"], ranks: int, *, most: int) -> None:
        self.by_speed, self._most = every == "speed", most
        self._seconds: list[float] = []
        if every == "speed":
            self.now = (min(FIRST, most),) * ranks
        else:
            self.now = every if isinstance(every, tuple) else (every,) * ranks
        if len(self.now) != ranks:
            raise UserError(
                f"every={list(self.now)} gives {len(self.now)} ranks their local steps, and there are {ranks}; "
                "give one number for each rank, or one for all"
            )

    def tell(self, seconds: Sequence[float]) -> bool:
        """Take each rank's seconds for a local step in the round that ended; return whether numbers change."""
        if not self.by_speed or not all(0 < each < math.inf for each in seconds):
            return False
        old = self._seconds or seconds
        self._seconds = [
            (1 - WEIGHT_OF_NEW) * before + WEIGHT_OF_NEW * new for before, new in zip(old, seconds, strict=True)
        ]
        fastest = min(self._seconds)
        best = tuple(max(1, round(self._most * fastest / each)) for each in self._seconds)
        if all(abs(b - now) <= CHANGE * now for b, now in zip(best, self.now, strict=True)):
            return False
        self.now = best
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers and the measured speeds."""
        return {"now": list(self.now), "seconds": list(self._seconds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.now, self._seconds = tuple(state["now"]), list(state["seconds"])
