"""Work in strict order: by a thread of its own, or by whoever waits for it while that thread is idle."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Running(Generic[T]):
    """A result that is being worked on."""

    def __init__(
        self, work: Callable[[], T], turns: Turns, ended: Callable[[Running[T]], None] | None = None
    ) -> None:
        self._work: Callable[[], T] | None = work
        self._turns, self._ended = turns, ended
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._value: T

    def wait(self) -> T:
        """Return the result; it ends in time when each piece of work does."""
        while not self._done.is_set():
            if not self._turns.take_one():
                self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def run(self) -> None:
        """Do the work (once)."""
        assert self._work is not None
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        self._work = None
        self._done.set()
        if self._ended is not None:
            self._ended(self)


class Turns:
    """Does what is submitted, one after another, in order.

    A waiter who finds nobody at work does the next piece itself: on busy processors waking a thread and being
    woken by it takes longer than a small message.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._queue: deque[Running[Any]] = deque()
        self._changed = threading.Condition()
        self._at_work = self._closed = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T], ended: Callable[[Running[T]], None] | None = None) -> Running[T]:
        """Queue a piece of work.

        Args:
            ended: told when the work has been done or has failed.
        """
        job = Running(work, self, ended)
        with self._changed:
            self._queue.append(job)
            self._changed.notify()
        return job

    def take_one(self, only: Running[Any] | None = None) -> bool:
        """Do the next piece of work unless somebody is at work already; returns whether it was done.

        Args:
            only: do nothing when another one is next.
        """
        with self._changed:
            if self._at_work or not self._queue or (only is not None and self._queue[0] is not only):
                return False
            job = self._queue.popleft()
            self._at_work = True
        try:
            job.run()
        finally:  # also after an error of who is told, or all who come later would wait for ever
            with self._changed:
                self._at_work = False
                if self._queue or self._closed:
                    self._changed.notify()
        return True

    def close(self, *, wait: bool = True) -> None:
        """End the thread after what was submitted is done."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if wait:
            self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                while self._at_work or not self._queue:
                    if self._closed and not self._at_work and not self._queue:
                        return
                    self._changed.wait()
            self.take_one()
