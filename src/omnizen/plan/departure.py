"""Whether a run still goes as expected: step times against those before, with what they vary by anyway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from omnizen.plan.words import duration

LEAST = 0.25
"""A change of step time below this share is never news."""
SPREADS = 3.0
"""Nor is one within so many times what step times vary by."""
IN_A_ROW = 2
"""Looks that must find the same before it is believed."""
SHARE = 0.02
"""Of a run's time, what measuring and planning anew may take."""


@dataclass(frozen=True, slots=True)
class Look:
    """What all ranks saw since the last look; the same on all of them.

    Args:
        step_s: median seconds of a step, the slowest rank's.
        spread_s: 80th less 20th percentile of them, the widest.
        compute_s: by rank, median seconds of its own computing.
    """

    step_s: float
    spread_s: float
    compute_s: tuple[float, ...]


@dataclass(slots=True)
class Expectation:
    """Decides from looks at a run whether it has departed from what was expected; no clock, no network.

    Args:
        predicted_s: what the plan said of a step.

    Example:
        >>> run = Expectation(0.1)
        >>> [run.tell(Look(s, 0.001, (0.05, 0.05))) is None for s in (0.1, 0.1, 0.2, 0.2)]
        [True, True, True, False]
    """

    predicted_s: float
    usual: Look | None = None
    unusual: list[Look] = field(default_factory=list)

    def tell(self, look: Look) -> str | None:
        """Take in a look; returns what has changed, in words, once that is certain enough.

        The first look is what later ones are compared with: predictions are off by some share from the start, and
        that share does not change.
        """
        if self.usual is None:
            self.usual = look
            return None
        if not self._differs(look):
            self.unusual.clear()
            return None
        self.unusual.append(look)
        if len(self.unusual) < IN_A_ROW:
            return None
        return _words(self.usual, look)

    def first_words(self) -> str | None:
        """Say how far the prediction was off, where that is more than steps vary by."""
        if self.usual is None or not self.predicted_s:
            return None
        off = abs(self.usual.step_s - self.predicted_s)
        if off <= max(LEAST * self.predicted_s, SPREADS * self.usual.spread_s):
            return None
        return (
            f"steps take {duration(self.usual.step_s)}, {duration(self.predicted_s)} were predicted; from now on "
            "they are compared with what they take"
        )

    def _differs(self, look: Look) -> bool:
        assert self.usual is not None
        allowed_s = max(LEAST * self.usual.step_s, SPREADS * max(self.usual.spread_s, look.spread_s))
        return abs(look.step_s - self.usual.step_s) > allowed_s


def _words(usual: Look, now: Look) -> str:
    changes = [(b - a, rank) for rank, (a, b) in enumerate(zip(usual.compute_s, now.compute_s, strict=True))]
    most_s, rank = max(changes, key=lambda change: abs(change[0]))
    longer_s = now.step_s - usual.step_s
    text = f"steps take {duration(now.step_s)} instead of {duration(usual.step_s)}: "
    if abs(most_s) >= 0.5 * abs(longer_s) and most_s * longer_s > 0:
        verb = "takes" if most_s > 0 else "no longer takes"
        slower = max(now.compute_s[rank], usual.compute_s[rank]) / max(
            min(now.compute_s[rank], usual.compute_s[rank]), 1e-9
        )
        return text + f"rank {rank} {verb} {slower:.1f} times as long for its own computing"
    return text + f"computing takes as long as before, so links are {'slower' if longer_s > 0 else 'faster'}"


def affordable(cost_s: float, spent_s: float, elapsed_s: float) -> bool:
    """Return whether measuring and planning anew stays within its share of the run's time.

    Args:
        cost_s: what it is expected to take.
        spent_s: what it took so far.
        elapsed_s: the run's time.
    """
    return spent_s + cost_s <= SHARE * elapsed_s


def middle_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the 80th less the 20th percentile."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return median(ordered), ordered[round(0.8 * last)] - ordered[round(0.2 * last)]
