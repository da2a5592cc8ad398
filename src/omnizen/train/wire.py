"""Communication strictly in the order of submission, so that no order can differ between ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from omnizen.comm.turns import Running, Turns
from omnizen.errors import OmnizenError

T = TypeVar("T")


class Wire:
    """A first-in-first-out communication thread. After one failure nothing more is sent.

    Each wait on a link has the comm's own limit, so every piece of work ends.
    """

    def __init__(self, name: str) -> None:
        self._turns = Turns(name)
        self.failed: BaseException | None = None
        self._closed = False

    def submit(self, work: Callable[[], T], ended: Callable[[Running[T]], None] | None = None) -> Running[T]:
        """Queue a piece of work.

        Args:
            ended: told by who did the work when it is done, has failed, or was left out.

        Raises:
            OmnizenError: the run was closed.
        """
        if self._closed:
            raise OmnizenError("the run was closed; nothing can be communicated any more")

        def unless_failed() -> T:
            if self.failed is not None:
                raise self.failed
            try:
                return work()
            except BaseException as error:
                self.failed = error
                raise

        return self._turns.submit(unless_failed, ended)

    def help(self, job: Running[T]) -> None:
        """Do a job at once, in the calling thread, if it is the next one and nobody is at work."""
        self._turns.take_one(job)

    def close(self) -> None:
        """End the thread after the work at hand."""
        self._closed = True
        self._turns.close(wait=False)
