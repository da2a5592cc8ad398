"""Signals that tell a lab to stop are noted, so that it can clean up before it ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While entered (in the main thread), SIGINT, SIGTERM and SIGHUP are counted instead of ending the process."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.count = 0
        self._before: dict[int, Any] = {}

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """Count a signal."""
        del frame
        self.count += 1
        if self.first is None:
            self.first = number

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it: stays ignored
                    self._before[number] = signal.signal(number, self.note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def pass_on(self) -> None:
        """Raise what the first signal would have raised."""
        if self.first == signal.SIGINT:
            raise KeyboardInterrupt
        if self.first is not None:
            raise SystemExit(128 + self.first)
