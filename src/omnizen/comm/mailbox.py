"""What every mailbox keeps the same way: who is gone, what it refuses, and how a rank asks itself."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from omnizen.comm.base import HasStep, check_parts
from omnizen.errors import NoAnswer, PeerLost, PeerTimeout, UserError, of_user_code
from omnizen.protocols import Later, Pending
from omnizen.spans import span
from omnizen.types import Parts

Answer = Callable[[int, Parts], Parts]
LEAVING_S = 2.0
"""How long a mailbox that closes waits for answers that are begun."""


class MailboxBase:
    """A mailbox without a way to other ranks; makers add ``_send`` and what answers.

    Args:
        parent: whose step this mailbox follows until it is given one.
        members: the world rank of each rank, for errors.
    """

    def __init__(
        self, rank: int, members: list[int], name: str, timeout_s: float, parent: HasStep | None = None
    ) -> None:
        self.rank, self.size, self.members = rank, len(members), members
        self.name, self.timeout_s = name, timeout_s
        self._parent = parent
        self._step: int | None = None
        self._answer: Answer | None = None
        self._lost: set[int] = set()
        self._closed = False
        self._answering: set[int] = set()
        self._changed = threading.Condition()

    @property
    def step(self) -> int | None:
        """Step to name in errors."""
        return self._parent.step if self._step is None and self._parent is not None else self._step

    @step.setter
    def step(self, step: int | None) -> None:
        self._step = step

    def serve(self, answer: Answer) -> None:
        """Begin to answer."""
        with self._changed:
            if self._answer is not None:
                raise UserError(f"mailbox {self.name!r} already answers; make another one")
            self._answer = answer
            self._changed.notify_all()

    def ask(self, dest: int, parts: Parts) -> Pending[Parts]:
        """Send parts to a rank; its answer comes when waited for."""
        check_parts(parts, "ask")
        if isinstance(dest, bool) or not isinstance(dest, int) or not 0 <= dest < self.size:
            raise UserError(f"ask: the ranks of {self.name!r} are 0..{self.size - 1}, got {dest!r}")
        if self._closed:
            raise UserError(f"mailbox {self.name!r} is closed")
        if dest == self.rank:
            own = [p.detach().to("cpu", copy=True) for p in parts]
            return Later(lambda: [p.detach().to("cpu", copy=True) for p in self.answered(dest, own)])
        started_s, step = time.monotonic(), self.step
        if dest in self._lost:
            raise self.failure(dest, step, started_s)
        finish = self._send(dest, parts)

        def waited() -> Parts:
            with span("wait", self.name):
                return finish(step, started_s)

        return Later(waited)

    def _send(self, dest: int, parts: Parts) -> Callable[[int | None, float], Parts]:
        """Send a question; returns what waits for the answer, given the step and when it was asked."""
        raise NotImplementedError

    def answered(self, source: int, parts: Parts) -> Parts:
        """Answer a question, waiting until there is what answers.

        Raises:
            NoAnswer: it raised an error.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._answer is not None or self._closed, self.timeout_s):
                raise NoAnswer(f"rank {self.members[self.rank]} does not answer in {self.name!r} yet")
            answer = self._answer
        if answer is None or self._closed:
            raise NoAnswer(f"rank {self.members[self.rank]} has closed its mailbox {self.name!r}")
        try:
            found = answer(source, parts)
            check_parts(found, "an answer")
        except Exception as error:
            asked = f"rank {self.members[self.rank]} could not answer rank {self.members[source]}"
            raise NoAnswer(f"{asked}: {of_user_code(error)}") from error
        return found

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Hold ``close`` up until the answer that this thread gives has left."""
        me = threading.get_ident()
        with self._changed:
            self._answering.add(me)
        try:
            yield
        finally:
            with self._changed:
                self._answering.discard(me)
                self._changed.notify_all()

    def stop_answering(self) -> bool:
        """Take no further question and let answers that are begun leave; returns whether it was open until now."""
        with self._changed:
            if self._closed:
                return False
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._answering <= {threading.get_ident()}, LEAVING_S)
        return True

    def lost(self) -> frozenset[int]:
        """Return the ranks that are known to be gone."""
        return frozenset(self._lost)

    def lose(self, rank: int) -> None:
        """Note that a rank is gone."""
        with self._changed:
            self._lost.add(rank)
            self._changed.notify_all()

    def failure(self, peer: int, step: int | None, started_s: float, *, late: bool = False) -> PeerLost:
        """Return the error for who waits for a rank that is gone."""
        made = PeerTimeout if late else PeerLost
        return made(
            rank=self.members[self.rank],
            peer=self.members[peer],
            step=step,
            elapsed_s=time.monotonic() - started_s,
            limit_s=self.timeout_s,
        )
