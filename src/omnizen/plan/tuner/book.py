"""What a tuner has seen: probes with their outcomes, notes of its decisions, and what its searching has cost."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from statistics import pstdev

from omnizen.plan.tuner.actions import Action, Point, Probe, Result, Train
from omnizen.plan.tuner.settings import Settings

Asking = Generator[Action, Result, "Trial | None"]
"""A search: asks for probes, is told results, and ends with the trial that it chose, or None."""


@dataclass(frozen=True, slots=True)
class Note:
    """One decision.

    Args:
        phase: "cold start", "training" or "steady state".
        kind: what the text is: "expects", "probed", "rejected", "skipped", "chose", "unsure", "stopped".
        text: in words, with the numbers that it rests on.
    """

    phase: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Trial:
    """A probe that was carried out.

    Args:
        score: mean of its last losses; infinite when it was rejected.
        spread: standard deviation of that mean, from the scatter of the losses.
        reason: why it was rejected; empty otherwise.
    """

    probe: Probe
    result: Result
    score: float
    spread: float
    reason: str = ""

    @property
    def diverged(self) -> bool:
        """Whether it was rejected for its losses, so that larger steps are out of question too."""
        return self.reason.startswith("diverged")

    @property
    def point(self) -> Point:
        """How it trained."""
        return self.probe.point


class Book:
    """Keeps count for the searches."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.notes: list[Note] = []
        self.trials: list[Trial] = []
        self.phase = "cold start"
        self.probed_s = self.trained_s = self.adopted_s = 0.0
        self.since = 0
        self.kept: set[int] = set()

    def note(self, kind: str, text: str) -> None:
        """Write a decision down."""
        self.notes.append(Note(self.phase, kind, text))

    def begin(self, phase: str) -> None:
        """Begin a phase; what probes of earlier ones showed was from other checkpoints."""
        self.phase, self.since = phase, len(self.trials)
        self.kept = set()

    @property
    def recent(self) -> list[Trial]:
        """Trials of this phase."""
        return self.trials[self.since :]

    @property
    def wasted(self) -> float:
        """Share of all seconds that went to probes whose outcome was not trained on."""
        total = self.probed_s + self.trained_s
        return (self.probed_s - self.adopted_s) / total if total else 0.0

    def budget_s(self) -> float:
        """Return the seconds of probing that may still begin; infinite if the training after a search pays for it.

        What the best probe so far has trained is not lost.
        """
        if self.settings.horizon_s is None:
            return math.inf
        ahead = max((self._line(self.trials[number]) for number in self.kept), default=0.0)
        return self.settings.overhead * self.settings.horizon_s - (self.probed_s - self.adopted_s - ahead)

    def probe(self, point: Point, seconds: float, start: int | None = None) -> Asking:
        """Ask for one probe; returns the trial, or None when the budget does not allow it."""
        needed = self.phase == "cold start" and all(t.reason for t in self.recent)  # something must be found
        if seconds > self.budget_s() * (1 + 1e-9) and not needed:
            self.note(
                "stopped", f"{point}: not probed, the search may take {self.settings.overhead:.0%} of the run"
            )
            return None
        probe = Probe(len(self.trials), point, seconds, start)
        result = yield probe
        trial = self._judge(probe, result)
        self.trials.append(trial)
        self.probed_s += result.seconds
        self.kept.add(probe.number)
        if trial.reason:
            self.kept.discard(probe.number)
            self.note("rejected", f"{point}: {trial.reason}")
        else:
            self.note(
                "probed",
                f"{point}: loss {trial.score:.4g} after {result.seconds:.3g} s, {result.update_s:.3g} s an update",
            )
        return trial

    def _judge(self, probe: Probe, result: Result) -> Trial:
        settings = self.settings
        score = result.score(settings.last)
        tail = result.losses[-settings.last :]
        reason = ""
        if result.error:
            reason = f"failed: {result.error}"
        elif not result.losses:
            reason = f"no update in {result.seconds:.3g} s"
        elif math.isinf(score):
            at = next(i for i, loss in enumerate(result.losses) if not math.isfinite(loss))
            reason = f"diverged: the loss was no number after {at} of {result.updates} updates"
        elif result.blew_up(settings.last, settings.blown_up):
            reason = f"diverged: the loss went from {result.losses[0]:.4g} to {score:.4g}"
        spread = pstdev(tail) / math.sqrt(len(tail)) if len(tail) > 1 and not reason else 0.0
        return Trial(probe, result, math.inf if reason else score, spread, reason)

    def best(self, trials: list[Trial], near: float = 0.0) -> Trial | None:
        """Return the lowest score; of those within ``near`` of it the largest step size, then momentum."""
        good = [t for t in trials if not t.reason]
        if not good:
            return None
        least = min(t.score for t in good)
        close = [t for t in good if t.score <= least + near * abs(least)]
        return max(close, key=lambda t: (t.point.step, t.point.momentum, -t.score))

    def keep_only(self, *trials: Trial | None) -> None:
        """Let the states at the end of other probes go."""
        self.kept &= {t.probe.number for t in trials if t is not None}

    def chose(self, trial: Trial) -> None:
        """Write down what a search chose, and how sure it is."""
        self.note("chose", f"{trial.point}: loss {trial.score:.4g}")
        others = [t for t in self.recent if not t.reason and t.point != trial.point]
        close = [t for t in others if t.score - trial.score <= 2 * math.hypot(t.spread, trial.spread)]
        if close:
            names = "; ".join(f"{t.point} ({t.score:.4g})" for t in close[:3])
            self.note("unsure", f"within the scatter of the losses: {names}")

    def train(self, trial: Trial) -> Generator[Action, Result, Result]:
        """Ask for a stretch of training from the end of a trial, long enough to pay for the search before it."""
        settings = self.settings
        start = trial.probe.number if trial.probe.number in self.kept else None
        if start is not None:
            self.adopted_s += self._line(trial)
        wasted = self.probed_s - self.adopted_s
        seconds = max(wasted / settings.overhead - wasted - self.trained_s, 2 * settings.probe_s)
        if settings.horizon_s is not None and not settings.steady:
            seconds = max(seconds, settings.horizon_s - self.probed_s - self.trained_s)
        result = yield Train(trial.point, seconds, start)
        self.trained_s += result.seconds
        return result

    def _line(self, trial: Trial) -> float:
        """Return the seconds of a trial and of those that it went on from."""
        seconds, number = 0.0, trial.probe.number
        while number is not None:
            before = self.trials[number]
            seconds += before.result.seconds
            number = before.probe.start  # type: ignore[assignment]
        return seconds
