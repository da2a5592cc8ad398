"""A rank's own seconds of a step: everything it does but waiting for others."""

from __future__ import annotations

import math
import time

import torch

from omnizen.train.sync import Engine


class OwnTime:
    """Measures from the end of one synchronised backward to the end of the next, without waits for other ranks.

    Under synchronous training all ranks take the same time for a step, whoever is slow, so that time says nothing.
    On a GPU the stream's own clock counts, as the host runs ahead of it (not measured on a GPU yet).

    Args:
        device: of the model.
    """

    def __init__(self, engine: Engine, device: torch.device) -> None:
        self._engine, self._device = engine, device
        self._began_s = math.nan
        self._waited_s = 0.0
        self._stream_began: torch.cuda.Event | None = None
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds = 0.0

    def begin(self) -> None:
        """Be told that nothing is left to wait for."""
        self._began_s, self._waited_s = time.monotonic(), self._engine.waited_s
        self._stream_began = self._mark()

    def end(self, at_s: float) -> None:
        """Be told that backward has ended, at a time of ``time.monotonic``; several passes of a step add up."""
        waited_s = self._engine.waited_s - self._waited_s
        now = self._mark()
        if now is None or self._stream_began is None:
            self._seconds += at_s - self._began_s - waited_s
        else:
            self._seconds -= waited_s
            self._pairs.append((self._stream_began, now))

    def take(self) -> float:
        """Return the seconds since the last call; NaN for the first step, whose beginning was not seen."""
        seconds, self._seconds = self._seconds, 0.0
        for began, ended in self._pairs:
            ended.synchronize()  # of a step before, so it is over
            seconds += began.elapsed_time(ended) / 1000
        self._pairs = []
        return seconds

    def _mark(self) -> torch.cuda.Event | None:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
