"""What the demo prints: facts, plan and why, live progress, and both runs side by side."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from omnizen.bench.demo import DemoSettings, Network, Outcome
from omnizen.bench.summary import Trial
from omnizen.bench.tables import Kind, show, table
from omnizen.bench.trial import Follow

TITLES = {"ddp": "1. stock DistributedDataParallel", "omnizen": "2. Omnizen"}
EVERY_S = 5.0
"""Without a terminal, at most one line in so many seconds."""


class Show:
    """Prints the demo as it goes, on a terminal or into a log."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bars: Progress | None = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
            )
            self._bars = Progress(*columns, console=console, transient=True)
        self._task: TaskID | None = None

    def __enter__(self) -> Show:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str, style: str = "") -> None:
        """Print some lines as they are."""
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def doing(self, text: str) -> None:
        """Say what begins, so that nobody waits without knowing for what."""
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, text=text)
        else:
            self.say(f"  {text} ...", "dim")

    def network(self, settings: DemoSettings, joined: Network) -> None:
        """Say how the workers are joined, and that paced links are no wire."""
        what = f"{settings.workers} workers, {settings.rate} each way"
        if joined.shaped:
            self.say(f"Network: {what}, links shaped by the kernel between network namespaces of this machine.")
            return
        why = f" ({joined.why_not})" if joined.why_not else ""
        self.say(
            f"Network: {what}, loopback paced in software{why}. "
            "Times and bytes below are those of a model of such links, not measured on a wire."
        )

    def corpus(self, name: str, tokens: int, words: int, batch: int, note: str) -> None:
        """Say what is trained on."""
        source = "the Python standard library's own source" if name == "stdlib" else name
        self.say(
            f"Model: word embedding {words:,} x 200, tied, LSTM, sampled softmax; {tokens:,} tokens of {source}; "
            f"batch {batch} x 35 tokens a worker."
        )
        if note:
            self.say(f"Note: {note}")

    def begin(self, method: str, run_dir: Path) -> Follow:
        """Show a run's steps."""
        title = TITLES[method]
        self.say(f"\n{title}: starting workers")
        if self._bars is not None:
            self._task = self._bars.add_task(title, total=None, text="starting")
        last_s = time.monotonic()

        def on_message(kind: str, what: dict[str, Any]) -> None:
            nonlocal last_s
            if kind == "doing":
                self.doing(what["text"])
            elif kind == "plan":
                self._plan(run_dir, what["step"])
            elif kind == "planned" and self._bars is not None and self._task is not None:
                self._bars.update(self._task, total=what["steps"])
            elif kind == "step":
                text = f"{what['step_s']:.2f} s/step, loss {what['loss']:.4f}"
                if self._bars is not None and self._task is not None:
                    self._bars.update(self._task, completed=what["step"] + 1, text=text)
                elif time.monotonic() - last_s >= EVERY_S:
                    last_s = time.monotonic()
                    self.say(f"  step {what['step'] + 1}: {text}")

        return on_message

    def end(self, trial: Trial) -> None:
        """Say how a run went."""
        if self._bars is not None and self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None
        if not trial.failed:
            steps = len(trial.losses)
            self.say(f"  {steps} steps, {fmean(trial.step_s):.3f} s each, loss {trial.losses[-1]:.4f}")

    def _plan(self, run_dir: Path, step: int) -> None:
        from omnizen.measure.facts import Facts
        from omnizen.plan.explain import explain
        from omnizen.plan.plan import Plan

        text = explain(Plan.load(run_dir / "plan.toml"), Facts.load(run_dir / "facts.toml"))
        self.say(f"  after {step} steps the plan is in force:\n")
        self.say("\n".join(f"  {line}" for line in text.splitlines()) + "\n")

    def outcome(self, joined: Network, outcome: Outcome) -> None:
        """Print both runs side by side and where the report is."""
        show(self.console, side_by_side(joined, outcome))
        n = outcome.common_steps
        self.say(f"The losses of the first {n} steps agree to {outcome.losses_off:.1e}: same model, same batches.")
        if not joined.shaped:
            self.say("Links were paced in software: run as root on Linux for a measurement over shaped links.")
        self.say(f"Report: {outcome.report.resolve()}")


def side_by_side(joined: Network, outcome: Outcome) -> Table:
    """Return the table of both runs."""
    ddp, ours = outcome.ddp, outcome.omnizen
    ddp_s, ours_s = fmean(ddp.step_s), fmean(ours.step_s)
    received = [max(a.rx_bytes_per_step for a in t.answers) for t in (ddp, ours)]
    label = "on the wire" if joined.shaped else "counted, not on a wire"
    fewer = f"{received[0] / received[1]:.1f} x less" if received[1] else ""
    lines = [
        ("seconds per step", f"{ddp_s:.3f}", f"{ours_s:.3f}", f"{ddp_s / ours_s:.1f} x faster"),
        (f"MB received per worker and step, {label}", *(f"{r / 1e6:.2f}" for r in received), fewer),
    ]
    last = outcome.common_steps
    for step in sorted({1, (last + 1) // 2, last}):
        a, b = ddp.losses[step - 1], ours.losses[step - 1]
        lines.append((f"loss at step {step}", f"{a:.5f}", f"{b:.5f}", f"off by {abs(a - b) / abs(a):.0e}"))
    if len(ddp.losses) != len(
        ours.losses
    ):  # each took what fitted into its time: no comparison, and not to look like one
        taken = (f"{len(t.losses)} steps" for t in (ddp, ours))
        lines.append(("steps taken in the time for each run", *taken, ""))
        lines.append(
            (
                "loss after these unequal numbers of steps",
                f"{ddp.losses[-1]:.4f}",
                f"{ours.losses[-1]:.4f}",
                "not compared",
            )
        )
    predicted = ours.answers[0].predicted_step_s
    if predicted is not None:
        off = f"off by {abs(predicted / ours_s - 1):.0%}"
        lines.append(("predicted seconds per step", "", f"{predicted:.3f}", off))
    columns: dict[str, Kind] = {"": "text", "stock DDP": "number", "Omnizen": "number", "factor": "number"}
    return table("side by side", columns, lines)
