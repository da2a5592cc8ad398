"""Thread ranks that compute one at a time, so that what each needs of a processor can be timed on one core."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

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
        self._sums: dict[tuple[str, int], list[Tensor | None]] = {}
        self._totals: dict[tuple[str, int], tuple[Tensor, set[int]]] = {}

    def take(self) -> None:
        """Wait for the place."""
        self._lock.acquire()
        self._since_s = time.perf_counter()

    def leave(self, rank: int) -> None:
        """Give it up."""
        self.held_s[rank] += time.perf_counter() - self._since_s
        self._lock.release()

    def bring(self, call: tuple[str, int], rank: int, size: int, x: Tensor) -> None:
        """Leave a copy of a tensor that is to be summed; whoever computes has the desk, so no lock is needed."""
        self._sums.setdefault(call, [None] * size)[rank] = x.detach().clone()

    def sum_of(self, call: tuple[str, int], rank: int) -> Tensor:
        """Return the sum of what all ranks brought, in rank order.

        The first who asks adds up, for all: on average a rank adds ``(n - 1) / n`` of a tensor, as in a ring.
        """
        brought = self._sums[call]
        if any(x is not None for x in brought):
            first, *others = [x for x in brought if x is not None]
            for x in others:
                first.add_(x)
            brought[:] = [None] * len(brought)
            self._totals[call] = first, set(range(len(brought)))
        total, waiting = self._totals[call]
        waiting.discard(rank)
        if not waiting:
            del self._totals[call], self._sums[call]
        return total.clone()

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
        self._reduced = 0

    def around(self, call: Call) -> Pending[Any]:
        """Let others compute from when a result is waited for until it is there."""
        if call.verb == "barrier":
            return self._waited(call.start)
        if call.verb == "all_reduce":
            return self._summed(call.out[call.rank][0])
        pending = call.start()
        return Later(lambda: self._waited(lambda: pending).wait())

    def _summed(self, x: Tensor) -> Pending[Tensor]:
        """Sum at the desk: ranks of threads would each add up everything, in nobody's turn."""
        key, self._reduced = (self.name, self._reduced), self._reduced + 1
        self._desk.bring(key, self.rank, self.size, x)
        all_there = self.inner.all_gather([])

        def finish() -> Tensor:
            self._waited(lambda: all_there)
            return self._desk.sum_of(key, self.rank)

        return Later(finish)

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
