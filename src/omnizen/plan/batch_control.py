"""Batch sizes that let unequal workers end each step together, from the times that their steps took.

References: Tyagi and Sharma, "Taming Resource Heterogeneity in Distributed ML Training with Dynamic Batching",
ACSOS 2020; "OmniLearn", IEEE TPDS 2025 (arXiv:2503.17469).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal

from omnizen.errors import UserError, nearest
from omnizen.plan.apportion import level, whole
from omnizen.plan.step_cost import StepCosts

LAWS = ("fitted", "proportional")
STARTS = ("measured", "even")
OUTLIERS = 3.0
"""Standard errors by which a time must be off before it counts as different."""
SURE = 4.0
"""The same before it counts as a new speed, as all that was measured before is then forgotten."""
SPEED_CHANGED = 0.2
FAR_OFF = 0.5
"""A time off by less than the first at the same size is no new speed; by more than the second, one at once."""
PROMISE = 0.02
"""A change must promise to shorten the slowest worker's time by so much."""
WAITS = (1, 1, 2, 4, 8)
"""Windows seen before a change, by the changes there were since a speed changed: quick first, then sure."""
MUCH_SLOWER = 0.2
"""A worker that grew and gets so much less done a second, against the others, has outgrown its memory or cache."""
FIRST_PATIENCE = 40
"""Windows after which a bound that lower throughput has set is tried again; doubled each time it is confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLaw:
    """How batch sizes follow measured times.

    Raises:
        UserError: a setting out of range; says what is allowed.

    Example:
        >>> BatchLaw(law="proportional", dead_band=0.2).least
        1
    """

    law: Literal["fitted", "proportional"] = "fitted"
    """"proportional" is the paper's: size times mean time over own time. "fitted" also knows, from two sizes on,
    what a step costs beside its samples, and so needs fewer adjustments where that is much."""
    window: int = 5
    """Steps whose median counts as one time; a single slow step among them does not count."""
    smoothing: float = 0.1
    """Weight of the newest window in the moving average, once there are more."""
    dead_band: float = 0.05
    """No change while every size is closer to the wanted one than this fraction of itself."""
    least: int = 1
    """Samples that every worker gets."""
    most: int | None = None
    """Samples that no worker gets more of, e.g. because of its memory."""
    global_batch: int | None = None
    """Samples of all workers a step; needed only where ``run.prepare`` gets no loader."""
    start: Literal["measured", "even"] | tuple[float, ...] = "measured"
    """First sizes: by how fast each worker multiplies matrices, alike, or by shares (see ``plan.open_loop``)."""

    def __post_init__(self) -> None:
        if self.law not in LAWS:
            raise UserError(f"law: {nearest(self.law, LAWS)}")
        for name, low, high in (("smoothing", 0.0, 1.0), ("dead_band", 0.0, math.inf)):
            if not low <= getattr(self, name) <= high or (name == "smoothing" and not self.smoothing):
                raise UserError(f"{name} must be from {low:g} to {high:g}, got {getattr(self, name)!r}")
        for name in ("window", "least", "most", "global_batch"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UserError(f"{name} must be a whole number from 1, got {value!r}")
        if isinstance(self.start, str) and self.start not in STARTS:
            raise UserError(f"start: {nearest(self.start, STARTS)}, or a share for each worker")
        if self.most is not None and self.most < self.least:
            raise UserError(f"most ({self.most}) is below least ({self.least})")


@dataclass(slots=True)
class _Bound:
    """A size beyond which a worker was slower a sample, and until which window that is believed."""

    most: int
    until: int
    patience: int


class BatchControl:
    """Decides batch sizes; pure, so that ranks which are told the same decide the same.

    Each step's own seconds are told; the median of a window goes into a moving average since the last change (of
    sizes or of a speed), the law gives the wanted sizes, bounds are kept and what they cut off is given to the
    others, and sizes change when they are off by more than the dead-band and by more than the noise explains.

    Args:
        sizes: first batch size of each worker; their sum stays.

    Raises:
        UserError: sizes that are not positive, or bounds that their sum cannot keep.

    Example:
        >>> control = BatchControl([32, 32])
        >>> [control.tell([0.1, 0.3], control.sizes) for _ in range(5)][-1]
        (48, 16)
    """

    def __init__(self, sizes: Sequence[int], law: BatchLaw | None = None) -> None:
        self.law = law or BatchLaw()
        self.sizes = tuple(sizes)
        self.adjustments = 0
        if not self.sizes or min(self.sizes) < 1:
            raise UserError(f"every worker needs at least one sample, got sizes {list(self.sizes)}")
        ones = (1.0,) * len(self.sizes)
        level(sum(self.sizes), ones, ones, self.law.least, self._most({}))  # the bounds can be kept
        self._costs = StepCosts(len(self.sizes))
        self._window: list[list[float]] = []
        self._windows = self._since = self._in_a_row = 0
        self._seconds: list[float] = []
        self._noise = [0.0] * len(self.sizes)
        self._noise_windows = 0
        self._off = [0] * len(self.sizes)
        self._throughput: list[float] = []
        self._grown: list[int | None] = [None] * len(self.sizes)
        self._bounds: dict[int, _Bound] = {}

    @property
    def seconds(self) -> tuple[float, ...]:
        """Each worker's own seconds of a step, smoothed; empty before the first window has ended."""
        return tuple(self._seconds)

    def tell(self, seconds: Sequence[float], samples: Sequence[float]) -> tuple[int, ...] | None:
        """Tell one step's own seconds and samples of every worker; returns the new sizes when they change.

        Steps of other sizes than the current ones (a change that has not reached all workers, the uneven end of an
        epoch) and times that cannot be are left out. Steps of several batches count by the batch.
        """
        batches = samples[0] / self.sizes[0]
        usual = batches >= 1 and batches == int(batches)
        usual = usual and all(n == size * batches for n, size in zip(samples, self.sizes, strict=True))
        if not usual or not all(0 < s < math.inf for s in seconds) or len(self.sizes) == 1:
            return None
        self._window.append([s / batches for s in seconds])
        if len(self._window) < self.law.window:
            return None
        self._smooth()
        return self._decide()

    def _smooth(self) -> None:
        columns = list(zip(*self._window, strict=True))
        self._window = []
        latest = [median(column) for column in columns]
        off = [_spread(column) / middle for column, middle in zip(columns, latest, strict=True)]
        self._noise_windows += 1
        self._noise = _towards(self._noise, off, max(1 / self._noise_windows, 0.1))
        self._windows += 1
        changed = self._new_speeds(latest) if self._since else []
        if changed:
            self._costs.forget(changed)
            self._since = self._in_a_row = 0
        self._since += 1
        self._seconds = _towards(
            self._seconds or latest, latest, 1.0 if self._since == 1 else max(1 / self._since, self.law.smoothing)
        )

    def _new_speeds(self, latest: Sequence[float]) -> list[int]:
        """Return workers whose time is another than before: far off, or off in two windows in a row."""
        found = []
        for k, (now, before) in enumerate(zip(latest, self._seconds, strict=True)):
            off, noise = now / before - 1, math.hypot(self._error(k), self._error(k, windows=1))
            counts = abs(off) > max(SPEED_CHANGED, SURE * noise)
            side = int(math.copysign(1, off)) if counts else 0
            if counts and (abs(off) > FAR_OFF or side == self._off[k]):
                found.append(k)
            self._off[k] = side
        return found

    def _error(self, worker: int, windows: int | None = None) -> float:
        """Return the relative standard error of a worker's smoothed time."""
        counted = min(self._since if windows is None else windows, (2 - self.law.smoothing) / self.law.smoothing)
        noise = max(self._noise[worker], fmean(self._noise))  # few values may look quiet by chance
        return noise * 1.25 / math.sqrt(self.law.window * max(counted, 1))

    def _decide(self) -> tuple[int, ...] | None:
        self._keep_bounds()
        fixed = [0.0] * len(self.sizes)
        if self.law.law == "fitted":
            errors = [self._error(k) for k in range(len(self.sizes))]
            self._costs.learn(self.sizes, self._seconds, errors)
            fixed = self._costs.fixed()
        speeds = [(size + f) / s for size, f, s in zip(self.sizes, fixed, self._seconds, strict=True)]
        most = self._most(self._bounds)
        wanted = level(sum(self.sizes), speeds, fixed, self.law.least, most)
        new = whole(wanted, sum(self.sizes))
        beyond_limits = any(size > bound for size, bound in zip(self.sizes, most, strict=True))
        if self._since < WAITS[min(self._in_a_row, len(WAITS) - 1)]:
            return None
        if new == self.sizes or not (beyond_limits or self._worth_it(wanted, new, speeds, fixed)):
            return None
        self._throughput = [size / s for size, s in zip(self.sizes, self._seconds, strict=True)]
        self._grown = [old if size > old else None for old, size in zip(self.sizes, new, strict=True)]
        self._costs.changed(self.sizes, self._seconds)
        self.sizes, self._since = new, 0
        self.adjustments, self._in_a_row = self.adjustments + 1, self._in_a_row + 1
        return new

    def _worth_it(
        self, wanted: Sequence[float], new: Sequence[int], speeds: Sequence[float], fixed: Sequence[float]
    ) -> bool:
        """Whether sizes leave the dead-band, and the slowest would be faster by more than noise explains."""
        far = any(
            abs(want - size) > size * max(self.law.dead_band, OUTLIERS * self._error(k))
            for k, (want, size) in enumerate(zip(wanted, self.sizes, strict=True))
        )
        slowest = max(range(len(new)), key=lambda k: self._seconds[k])
        then_s = max((size + f) / speed for size, f, speed in zip(new, fixed, speeds, strict=True))
        return far and 1 - then_s / self._seconds[slowest] > max(PROMISE, 2 * self._error(slowest))

    def _keep_bounds(self) -> None:
        """Bound workers that became much slower a sample when they grew; try again after some time.

        Where all became slower, as workers that share a machine do when none of them waits any more, it was not the
        size.
        """
        if any(old is not None for old in self._grown):
            rates = [size / s for size, s in zip(self.sizes, self._seconds, strict=True)]
            kept = [now / before for now, before in zip(rates, self._throughput, strict=True)]
            usual = min(1.0, median(kept))
            for k, old in enumerate(self._grown):
                bound = self._bounds.get(k)
                if old is None:
                    continue
                if kept[k] < usual * (1 - max(MUCH_SLOWER, OUTLIERS * self._error(k))):
                    patience = 2 * bound.patience if bound else FIRST_PATIENCE
                    self._bounds[k] = _Bound(old, self._windows + patience, patience)
                elif bound and self.sizes[k] > bound.most:
                    del self._bounds[k]
        self._grown = [None] * len(self.sizes)

    def _most(self, bounds: dict[int, _Bound]) -> list[int]:
        """Return each worker's upper bound; measured ones are left out where the sum could not be kept."""
        total = sum(self.sizes)
        usual = [total if self.law.most is None else self.law.most] * len(self.sizes)
        bounded = [
            min(most, bounds[k].most) if k in bounds and bounds[k].until > self._windows else most
            for k, most in enumerate(usual)
        ]
        return bounded if sum(bounded) >= total else usual

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later decisions depend on, as plain numbers."""
        return {
            "sizes": list(self.sizes),
            "adjustments": self.adjustments,
            "window": [list(row) for row in self._window],
            "counts": [self._windows, self._since, self._noise_windows, self._in_a_row],
            "seconds": list(self._seconds),
            "noise": list(self._noise),
            "off": list(self._off),
            "throughput": list(self._throughput),
            "grown": list(self._grown),
            "bounds": {k: [b.most, b.until, b.patience] for k, b in self._bounds.items()},
            "costs": self._costs.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the saved one was.

        Raises:
            UserError: the state is of another number of workers or of another global batch.
        """
        if len(state["sizes"]) != len(self.sizes) or sum(state["sizes"]) != sum(self.sizes):
            raise UserError(
                f"the saved batch sizes {state['sizes']} are of {len(state['sizes'])} workers and "
                f"{sum(state['sizes'])} samples a step; this run has {len(self.sizes)} and {sum(self.sizes)}"
            )
        self.sizes, self.adjustments = tuple(state["sizes"]), state["adjustments"]
        self._window = [list(row) for row in state["window"]]
        self._windows, self._since, self._noise_windows, self._in_a_row = state["counts"]
        self._seconds, self._noise, self._off = (list(state[name]) for name in ("seconds", "noise", "off"))
        self._throughput, self._grown = list(state["throughput"]), list(state["grown"])
        self._bounds = {k: _Bound(*numbers) for k, numbers in state["bounds"].items()}
        self._costs.load_state_dict(state["costs"])


def async_lr_scale(batch: float, mean_batch: float) -> float:
    """Return the factor of the step size for a contribution from ``batch`` samples.

    For asynchronous training, where no average weighs the contributions: linear in the batch, so that a sample
    moves the weights as far whichever worker it went through. That the paper scales so we know from a third party's
    summary only; its published code does not.

    Args:
        mean_batch: samples of a mean worker's contribution, whose factor is 1.

    Example:
        >>> async_lr_scale(16, 32)
        0.5
    """
    if not (0 < batch < math.inf and 0 < mean_batch < math.inf):
        raise UserError(f"batches are numbers of samples above 0, got {batch!r} and a mean of {mean_batch!r}")
    return batch / mean_batch


def _spread(values: Sequence[float]) -> float:
    """Return a robust standard deviation from the median distance to the median, which is small for few values."""
    middle, count = median(values), len(values)
    return 1.48 * count / max(count - 0.8, 0.2) * median(abs(value - middle) for value in values)


def _towards(old: Sequence[float], new: Sequence[float], weight: float) -> list[float]:
    return [a + weight * (b - a) for a, b in zip(old, new, strict=True)]


__all__ = ["BatchControl", "BatchLaw", "async_lr_scale"]
