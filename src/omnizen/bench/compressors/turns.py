"""Thread ranks that compute one at a time, so that what each needs of a processor can be timed on one core."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from omnizen.comm.wrapper import Call, Wrapper
from omnizen.protocols import Comm, Later, Pending


class Desk:
    """The one place at which a rank may compute; notes how long each held it.

    Args:
        size: ranks.
    """

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._since_s = 0.0
        self.held_s = [0.0] * size

    def take(self) -> None:
        """Wait for the place."""
        self._lock.acquire()
        self._since_s = time.perf_counter()

    def leave(self, rank: int) -> None:
        """Give it up."""
        self.held_s[rank] += time.perf_counter() - self._since_s
        self._lock.release()

    @contextmanager
    def turn(self, rank: int) -> Iterator[None]:
        """Compute in a block."""
        self.take()
        try:
            yield
        finally:
            self.leave(rank)


class InTurns(Wrapper):
    """A comm that gives the place up while it waits for other ranks.

    Args:
        inner: the comm.
        desk: where ranks take turns.
        rank: whose turns are noted; a sub-group's rank is another.
    """

    def __init__(self, inner: Comm, desk: Desk, rank: int | None = None) -> None:
        super().__init__(inner)
        self._desk = desk
        self._who = inner.rank if rank is None else rank

    def around(self, call: Call) -> Pending[Any]:
        """Let others compute from when a result is waited for until it is there."""
        if call.verb == "barrier":
            return self._waited(call.start)
        pending = call.start()
        return Later(lambda: self._waited(lambda: pending).wait())

    def _waited(self, start: Any) -> Pending[Any]:
        self._desk.leave(self._who)
        try:
            pending: Pending[Any] = start()
            pending.wait()
        finally:
            self._desk.take()
        return pending

    def rewrap(self, inner: Comm, ranks: Sequence[int]) -> InTurns:
        """Let a sub-group take the same turns."""
        del ranks
        return InTurns(inner, self._desk, self._who)
