"""Momentum and step size by staleness: what to use when another number of groups makes gradients older.

The loss is taken for a quadratic around where training is: its condition number follows from the momentum that was
found best, its scale from the step size (``curvature_of``); then the best pair for another staleness is computed
(``best``). It starts a search and saves probes; it does not replace them.

References: Mitliagkas, Zhang, Hadjis and Re 2016, Asynchrony begets Momentum; Hadjis et al. 2016, Omnivore.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from omnizen.errors import UserError
from omnizen.plan.delays import Floats, Order, mean_rates, run_rates, shares

LEAST, MOST = -0.9, 0.99
"""Limits of explicit momentum."""
FINEST = 0.02
"""Momenta that are nearer to each other are not told apart."""
NEAR = 0.08
"""Of momenta with rates (as logarithms) this close, the smallest is taken: it overshoots least."""
NARROWEST, WIDEST = 1.2, 2e4
"""Limits of a fitted condition number."""
Rates = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True, slots=True)
class Setting:
    """Momentum and step size, with the rate that they are expected to reach.

    Args:
        momentum: explicit momentum, may be negative.
        step: step size, in units of 1 / smallest curvature where no scale is known.
        rate: factor by which an update shrinks errors; 1 or more does not converge.
    """

    momentum: float
    step: float
    rate: float

    def updates(self, to: float = 0.01) -> float:
        """Return the updates in which errors shrink to a fraction of what they were."""
        return math.log(to) / math.log(self.rate) if self.rate < 1 else math.inf


def best(histogram: Sequence[float], condition: float) -> Setting:
    """Return the momentum and step size with which runs converge fastest, for curvatures from 1 to ``condition``.

    Args:
        histogram: staleness, counts or shares.

    Raises:
        UserError: a condition below 1, or more groups than rates are reckoned for.

    Example:
        >>> round(best([1.0], 4.0).momentum, 3)  # ((2 - 1) / (2 + 1)) ** 2
        0.111
    """
    return _best_of_order(Order.of(histogram), _checked(condition))


def best_of_mean(implicit: float, condition: float) -> Setting:
    """Return the momentum and step size with which the mean over runs converges fastest (Theorem 7).

    Args:
        implicit: momentum by asynchrony, 1 - 1/groups for exponential work times.

    Example:
        >>> round(best_of_mean(0.75, 5.0).rate, 2)
        0.82
    """
    return _search(partial(mean_rates, implicit), _checked(condition), 4 / (1 - implicit), near=0.0)


def _checked(condition: float) -> float:
    if not condition >= 1 or not math.isfinite(condition):
        raise UserError(f"a condition number is 1 or more, got {condition}")
    return float(condition)


@lru_cache(maxsize=512)
def _best_of_order(order: Order, condition: float) -> Setting:
    if order.groups == 1:  # Polyak's closed form
        root = math.sqrt(condition)
        momentum = min(((root - 1) / (root + 1)) ** 2, MOST)
        return Setting(momentum, 4 / (root + 1) ** 2, math.sqrt(momentum))
    return _search(partial(run_rates, order), condition, 4.0)


def _search(rates: Rates, condition: float, most: float, near: float = NEAR) -> Setting:
    """Look for the best momentum on ever finer grids, for each with its best step, at most ``most / condition``."""
    low, high, count, fastest = LEAST, MOST, 13, 0.0
    while True:
        momenta = np.linspace(low, high, count)
        steps, found = _best_steps(rates, momenta, condition, most)
        speed = -np.log(np.minimum(found, 1.0))
        fastest = max(fastest, float(speed.max()))
        close = speed >= (1 - near) * fastest
        i = int(np.where(close, np.abs(momenta), math.inf).argmin()) if fastest > 0 and close.any() else -1
        i = int(found.argmin()) if i < 0 else i
        between = (high - low) / (count - 1)
        if between <= FINEST:
            return Setting(float(momenta[i]), float(steps[i]), float(found[i]))
        low, high, count = max(LEAST, momenta[i] - between), min(MOST, momenta[i] + between), 9


def _best_steps(rates: Rates, momenta: Floats, condition: float, most: float) -> tuple[Floats, Floats]:
    """Return, for each momentum, the step at which the flattest and the steepest direction shrink alike."""
    low = np.full(len(momenta), math.log(1e-3 * most / condition))
    high = np.full(len(momenta), math.log(most / condition))
    both = np.concatenate([momenta, momenta])
    best_step, best_rate = np.exp(low), np.full(len(momenta), math.inf)
    for _ in range(16):
        middle = (low + high) / 2
        x = np.concatenate([np.exp(middle), condition * np.exp(middle)])
        flat, steep = np.split(rates(both, x), 2)
        worse = np.maximum(flat, steep)
        better = worse < best_rate
        best_rate, best_step = np.where(better, worse, best_rate), np.where(better, np.exp(middle), best_step)
        grow = flat > steep  # a longer step helps the flattest direction as long as that is the slower one
        low, high = np.where(grow, middle, low), np.where(grow, high, middle)
    return best_step, best_rate


@dataclass(frozen=True, slots=True)
class Curvature:
    """A quadratic that stands for the loss.

    Args:
        condition: largest curvature over smallest.
        smallest: smallest curvature.
    """

    condition: float
    smallest: float

    def best(self, histogram: Sequence[float]) -> Setting:
        """Return the best setting at this staleness, with the step size in the loss's own units."""
        found = best(histogram, self.condition)
        return Setting(found.momentum, found.step / self.smallest, found.rate)


def curvature_of(momentum: float, step: float, histogram: Sequence[float] = (1.0,)) -> Curvature:
    """Return the quadratic on which a setting is the best at this staleness.

    Args:
        momentum: explicit momentum that was found best.
        step: step size that was found best with it, above 0.
        histogram: staleness at which; none by default (one group).

    Raises:
        UserError: a momentum outside -1 to 1, or a step that is not above 0.

    Example:
        >>> round(curvature_of(0.9, 0.1).condition)
        1442
    """
    if not -1 < momentum < 1 or not (step > 0 and math.isfinite(step)):
        raise UserError(f"momentum must be within -1 and 1 and step above 0, got {momentum} and {step}")
    q = shares(histogram).tolist()
    if len(q) == 1:
        root = math.sqrt(max(momentum, 0.0))
        condition = min(max(((1 + root) / (1 - root)) ** 2, NARROWEST), WIDEST)
    else:  # best momentum grows with the condition number
        low, high = math.log(NARROWEST), math.log(WIDEST)
        for _ in range(7):
            middle = (low + high) / 2
            low, high = (middle, high) if best(q, math.exp(middle)).momentum < momentum else (low, middle)
        condition = math.exp((low + high) / 2)
    return Curvature(condition, best(q, condition).step / step)


def corrected(momentum: float, step: float, tuned_at: Sequence[float], used_at: Sequence[float]) -> Setting:
    """Return what becomes of a tuned setting when staleness changes.

    Args:
        momentum: best at staleness ``tuned_at``.
        step: step size that was best with it.
        tuned_at: histogram of staleness.
        used_at: histogram of the staleness to come.

    Example:
        >>> corrected(0.3, 0.1, [1.0], [0, 0, 0, 1]).momentum < 0.3
        True
    """
    return curvature_of(momentum, step, tuned_at).best(used_at)
