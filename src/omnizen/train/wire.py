"""One thread that communicates, strictly in the order of submission, so that no order can differ between ranks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from omnizen.errors import OmnizenError

T = TypeVar("T")
LOOK_S = 1.0
"""How often a waiter looks whether the thread still lives; each wait on a link has the comm's own limit."""


class Job(Generic[T]):
    """A result that the wire thread will make."""

    def __init__(self, work: Callable[[], T], wire: Wire, ended: Callable[[Job[T]], None] | None) -> None:
        self._work, self._wire, self._ended = work, wire, ended
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._value: T

    def run(self, earlier: BaseException | None) -> BaseException | None:
        """Do the work, unless an earlier job failed; returns the error that later jobs inherit."""
        try:
            if earlier is not None:
                raise earlier
            self._value = self._work()
        except BaseException as error:
            self._error = error
        self._done.set()
        if self._ended is not None:
            self._ended(self)
        return self._error

    def wait(self) -> T:
        """Return the result or raise the error of the first job that failed."""
        while not self._done.wait(LOOK_S):
            if not self._wire.alive and not self._done.is_set():
                raise OmnizenError("the communication thread has ended")
        if self._error is not None:
            raise self._error
        return self._value


class Wire:
    """A first-in-first-out communication thread. After one failure nothing more is sent."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self.failed: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether jobs are still being done."""
        return self._thread.is_alive()

    def submit(self, work: Callable[[], T], ended: Callable[[Job[T]], None] | None = None) -> Job[T]:
        """Queue a piece of work.

        Args:
            ended: told in the wire thread when the work is done, has failed, or was left out.

        Raises:
            OmnizenError: the run was closed.
        """
        if self._closed:
            raise OmnizenError("the run was closed; nothing can be communicated any more")
        job = Job(work, self, ended)
        self._jobs.put(job)
        return job

    def close(self) -> None:
        """End the thread after the work at hand."""
        self._closed = True
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self.failed = job.run(self.failed)
            del job
