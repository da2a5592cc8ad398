"""A layer around any mailbox; what it does stands in ``asking`` and ``answering``."""

from __future__ import annotations

from collections.abc import Callable

from omnizen.protocols import Mailbox, Pending
from omnizen.types import Parts

Answer = Callable[[int, Parts], Parts]


class MailWrapper:
    """Passes questions and answers on; subclasses override ``asking`` and ``answering``."""

    def __init__(self, inner: Mailbox) -> None:
        self.inner = inner
        self.rank, self.size, self.name = inner.rank, inner.size, inner.name
        self.timeout_s = inner.timeout_s

    @property
    def step(self) -> int | None:
        """Step to name in errors; the inner mailbox holds it."""
        return self.inner.step

    @step.setter
    def step(self, step: int | None) -> None:
        self.inner.step = step

    def asking(self, dest: int, parts: Parts) -> Pending[Parts]:
        """Ask; the place for what is done around a question."""
        return self.inner.ask(dest, parts)

    def answering(self, source: int, parts: Parts, answer: Answer) -> Parts:
        """Answer; the place for what is done around an answer."""
        return answer(source, parts)

    def ask(self, dest: int, parts: Parts) -> Pending[Parts]:
        """Send parts to a rank; its answer comes when waited for."""
        return self.asking(dest, parts)

    def serve(self, answer: Answer) -> None:
        """Begin to answer."""
        self.inner.serve(lambda source, parts: self.answering(source, parts, answer))

    def lost(self) -> frozenset[int]:
        """Return the ranks that are known to be gone."""
        return self.inner.lost()

    def close(self) -> None:
        """Close the inner mailbox."""
        self.inner.close()
