"""Asynchronous training that is always the same: ranks step in a given order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

LIMIT_S = 20


class Turns:
    """Lets ranks do something in an order that a test chose.

    Args:
        order: whose turn it is, one after another.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._order, self._at, self._changed = list(order), 0, threading.Condition()

    def of(self, rank: int) -> int:
        """Return how many turns a rank has."""
        return self._order.count(rank)

    def take(self, rank: int, work: Callable[[], object]) -> None:
        """Wait for this rank's next turn, and do the work."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._order[self._at] == rank, LIMIT_S)
        try:
            work()
        finally:
            with self._changed:
                self._at += 1
                self._changed.notify_all()
