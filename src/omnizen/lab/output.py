"""The output of one host as lines, whatever bytes it writes."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable

LONGEST_LINE_BYTES = 16_384
TAIL_LINES = 50
MOST_READS_AT_END = 32
"""More than a pipe holds."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")


class HostOutput:
    """Cuts what comes through a pipe into lines and hands them on as text.

    Lines longer than 16 KiB are cut; of a line that was written over with carriage returns, the last state is
    shown; bytes that are not UTF-8 and control characters (but tabs and colours) become marks.
    """

    def __init__(self, pipe: int, on_line: Callable[[str], None]) -> None:
        self.pipe, self._on_line = pipe, on_line
        self._rest = b""
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        os.set_blocking(pipe, False)

    def read(self) -> bool:
        """Take what has arrived, at most 64 KiB; return False when nothing had."""
        try:
            data = os.read(self.pipe, 65_536)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._show(line)
        while len(self._rest) > LONGEST_LINE_BYTES:
            self._show(self._rest[:LONGEST_LINE_BYTES])
            self._rest = self._rest[LONGEST_LINE_BYTES:]
        return bool(data)

    def finish(self) -> None:
        """Take what is still in the pipe and show an unfinished last line."""
        for _ in range(MOST_READS_AT_END):  # a process left behind may go on writing
            if not self.read():
                break
        if self._rest:
            self._show(self._rest)
            self._rest = b""

    def _show(self, line: bytes) -> None:
        for start in range(0, max(1, len(line)), LONGEST_LINE_BYTES):
            text = line[start : start + LONGEST_LINE_BYTES].decode("utf-8", errors="replace")
            text = _CONTROL.sub("\ufffd", text.rstrip("\r").rpartition("\r")[2])
            self.tail.append(text)
            self._on_line(text)
