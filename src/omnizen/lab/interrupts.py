"""Signals that tell a lab to stop: noted while it builds, runs or cleans up, so that nothing is left behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

ASK_TO_STOP = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9, and ``signal 40`` where a number has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Interrupts:
    """While entered in the main thread, signals that ask to stop unwind the stack, or are only noted when held."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.count = 0
        self._holds = 0
        self._before: dict[int, Any] = {}

    def note(self, number: int) -> None:
        """Take notice as if the signal had come; for threads, which get no signals."""
        self.count += 1
        if self.first is None:
            self.first = number

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.note(number)
        if not self._holds:
            self.pass_on()

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in ASK_TO_STOP:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it: stays ignored
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only note signals for the length of a block."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def pass_on(self) -> None:
        """Raise what the first signal asks for: ``KeyboardInterrupt`` for SIGINT, else ``SystemExit``."""
        if self.first == signal.SIGINT:
            raise KeyboardInterrupt
        if self.first is not None:
            raise SystemExit(128 + self.first)
