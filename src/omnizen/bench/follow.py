"""Progress of a benchmark for whoever waits: a live line on a terminal, one line a run elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.status import Status

from omnizen.bench.summary import Trial
from omnizen.bench.trial import Follow


class Progress:
    """Shows which run is at which step.

    Args:
        console: where to.
        total: runs to come.
    """

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total = console, total
        self.done = 0
        self._status: Status | None = None
        self._started = time.monotonic()

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._status = self.console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def follow(self, method: str, repeat: int) -> Follow:
        """Return who follows the messages of one run."""
        title = f"run {self.done + 1} of {self.total}: {method}, repeat {repeat + 1}"
        self._started = time.monotonic()
        self._show(f"{title}, starting")

        def on_message(kind: str, what: dict[str, Any]) -> None:
            if kind == "doing":
                self._show(f"{title}, {what['text']}")
            elif kind == "step":
                self._show(f"{title}, step {what['step'] + 1}, {what['step_s']:.2f} s, loss {what['loss']:.4f}")

        return on_message

    def ended(self, trial: Trial) -> None:
        """Say how one run ended."""
        self.done += 1
        seconds = time.monotonic() - self._started
        head = f"{self.done}/{self.total} {trial.method}"
        if trial.failed:
            self.console.print(
                f"{head}: failed after {seconds:.0f} s: {trial.failed}", highlight=False, markup=False
            )
            return
        step_s = sorted(trial.step_s)[len(trial.step_s) // 2]
        text = f"{head}: {len(trial.step_s)} timed steps, {step_s:.3f} s/step, loss {trial.losses[-1]:.4f}"
        self.console.print(f"{text} ({seconds:.0f} s in all)", highlight=False, markup=False)

    def _show(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)
