"""Where the time of a step goes: named stretches that any room may record, at no cost while nobody listens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

Category = Literal["compute", "select", "encode", "wait", "wire", "decode"]
CATEGORIES: tuple[Category, ...] = ("compute", "select", "encode", "wait", "wire", "decode")


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of one thread's time, in seconds of ``time.monotonic``."""

    category: Category
    name: str
    start_s: float
    duration_s: float
    thread: str


@dataclass(slots=True)
class Recorder:
    """Collects spans of all threads while it is active."""

    spans: list[Span] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, span: Span) -> None:
        """Keep one span."""
        with self._lock:
            self.spans.append(span)

    def drain(self) -> list[Span]:
        """Return what was collected and forget it."""
        with self._lock:
            taken, self.spans = self.spans, []
        return taken


_active: Recorder | None = None


def listen(recorder: Recorder | None) -> Recorder | None:
    """Make a recorder the process's active one (None stops recording); returns the one before."""
    global _active
    before, _active = _active, recorder
    return before


@contextmanager
def span(category: Category, name: str = "") -> Iterator[None]:
    """Record the time of a block under a category.

    Example:
        >>> recorder = Recorder(); _ = listen(recorder)
        >>> with span("encode", "embedding.weight"): pass
        >>> recorder.drain()[0].category, listen(None) is recorder
        ('encode', True)
    """
    if _active is None:
        yield
        return
    start_s = time.monotonic()
    try:
        yield
    finally:
        if _active is not None:
            thread = threading.current_thread().name
            _active.add(Span(category, name, start_s, time.monotonic() - start_s, thread))
