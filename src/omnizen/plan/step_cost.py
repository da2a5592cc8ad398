"""What a step costs beside its samples: ``seconds = (fixed + samples) / speed``, from two batch sizes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

LEAST_CHANGE = 0.1
"""Sizes closer than this fraction say nothing about fixed costs."""
MOST_FIXED = 4.0
"""Fixed costs of more than so many batches are not believed."""
SHARED_WEIGHT = 0.05
"""How much the other workers' fixed costs count beside a worker's own: little where its size has changed much."""
FADING = 0.5
"""What an estimate still counts when there is a newer one."""


class StepCosts:
    """Each worker's fixed cost of a step, in samples: that number stays when a machine becomes slower as a whole.

    Args:
        workers: how many.
    """

    def __init__(self, workers: int) -> None:
        self._before: list[tuple[int, float] | None] = [None] * workers
        self._known: list[tuple[float, float]] = [(0.0, 0.0)] * workers
        """Before the last change: fixed cost and how much it counts."""
        self._now = list(self._known)

    def learn(self, sizes: Sequence[int], seconds: Sequence[float], errors: Sequence[float]) -> None:
        """Compare with the sizes before the last change.

        Args:
            errors: relative standard errors of the seconds.
        """
        for k, before in enumerate(self._before):
            found = None if before is None else _fixed(*before, sizes[k], seconds[k], errors[k])
            value, weight = self._known[k]
            if found is not None and before is not None:
                new = (sizes[k] / before[0] - 1) ** 2
                value = (value * weight * FADING + found * new) / (weight * FADING + new)
                weight = weight * FADING + new
            self._now[k] = (value, weight)

    def changed(self, sizes: Sequence[int], seconds: Sequence[float]) -> None:
        """Note what was measured at sizes that are being left."""
        self._known = list(self._now)
        self._before = list(zip(sizes, seconds, strict=True))

    def forget(self, workers: Iterable[int]) -> None:
        """Workers run at another speed now: what they took before cannot be compared."""
        for k in workers:
            self._before[k] = None
            self._now[k] = self._known[k]

    def fixed(self) -> list[float]:
        """Return each worker's fixed cost in samples, the badly known ones drawn to those of the others."""
        total = sum(weight for _, weight in self._now)
        if not total:
            return [0.0] * len(self._now)
        shared = sum(value * weight for value, weight in self._now) / total
        return [(value * weight + shared * SHARED_WEIGHT) / (weight + SHARED_WEIGHT) for value, weight in self._now]

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers."""
        return {
            "before": [None if pair is None else list(pair) for pair in self._before],
            "known": [list(pair) for pair in self._known],
            "now": [list(pair) for pair in self._now],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a saved state."""
        self._before = [None if pair is None else tuple(pair) for pair in state["before"]]
        self._known = [tuple(pair) for pair in state["known"]]
        self._now = [tuple(pair) for pair in state["now"]]


def _fixed(old: int, old_s: float, new: int, new_s: float, error: float) -> float | None:
    """Return the fixed cost by which two times fit one worker, None where they say nothing or cannot be of one."""
    size, took = new / old, new_s / old_s
    low, high = min(1.0, size), max(1.0, size)
    slack = max(0.05, 3 * error)
    if high - low < LEAST_CHANGE * low or not low * (1 - slack) <= took <= high * (1 + slack):
        return None
    most = MOST_FIXED * max(old, new)
    fixed = (new - took * old) / (took - 1) if took != 1 else most
    return min(most, max(0.0, fixed)) if (took - 1) * (size - 1) > 0 else most
