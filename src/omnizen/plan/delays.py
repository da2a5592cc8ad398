"""Asynchronous gradient descent with momentum on a quadratic: staleness, and how fast errors shrink.

Along an eigenvector, with x the step size times the curvature, an update is ``v = mu v - x r; w = w + v`` where r
is what its group read after its own last update. Two rates describe it. That of the mean, E[w], is by Theorem 7 the
largest root of a cubic when staleness is geometric. That of runs, the root of E[w^2], also sees how far runs stray
from their mean. Settings that are best for the mean can let every single run diverge
(``tests/plan/test_momentum.py``), so tuning goes by the second.

Who finishes next is modelled by age: the group whose read is the i-th oldest is next with probability proportional
to ``skew ** i``. Skew 0 is one after another (constant staleness), 1 is anyone (exponential times, geometric
staleness), more is groups that lag behind. A histogram of staleness tells both numbers: its mean is groups - 1, its
variance grows with skew.

References: Mitliagkas, Zhang, Hadjis and Re 2016, Asynchrony begets Momentum (theorems 2, 3, 5, 6 and 7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from omnizen.errors import UserError

MOST_GROUPS = 16
"""Rates are reckoned for so many groups; beyond, the matrices become large."""
MOST_SKEW = 16.0
SQUARINGS = 8
Floats = NDArray[np.float64]


def shares(histogram: Sequence[float]) -> Floats:
    """Return a histogram of staleness as shares, without empty lags at its end.

    Args:
        histogram: how often a gradient was of weights that many updates old, from 0 on; counts or shares.

    Raises:
        UserError: it is empty, or holds a negative number.

    Example:
        >>> shares([3, 1, 0]).tolist()
        [0.75, 0.25]
    """
    counts: Floats = np.asarray(histogram, dtype=np.float64)
    if counts.ndim != 1 or not np.isfinite(counts).all() or (counts < 0).any() or not counts.sum() > 0:
        raise UserError("a histogram of staleness holds counts from 0 on, some above 0")
    found: Floats = np.asarray(counts[: int(np.flatnonzero(counts)[-1]) + 1] / counts.sum(), dtype=np.float64)
    return found


def geometric(groups: int) -> Floats:
    """Return the staleness of equal groups with exponential work times: shares (1 - m) m^l with m = 1 - 1/groups.

    References: Theorem 5.
    """
    if groups < 1:
        raise UserError(f"there are 1 or more groups, not {groups}")
    if groups == 1:
        return np.ones(1)
    m = 1 - 1 / groups
    powers: Floats = m ** np.arange(math.ceil(-16 / math.log(m)), dtype=np.float64)
    return shares(powers.tolist())


def implicit_momentum(histogram: Sequence[float]) -> float:
    """Return the momentum that asynchrony adds by itself.

    By Theorem 2 an update repeats the one before, less ``step * sum_l (q[l] - q[l+1]) gradient[t-l-1]``. What of
    that sum is a multiple of the update before, by least squares over uncorrelated gradients, leaves
    ``sum_l q[l] q[l+1] / sum_l q[l]^2`` of it: exactly m for geometric, nothing for constant staleness.

    Example:
        >>> round(implicit_momentum(geometric(4)), 3), implicit_momentum([0, 0, 0, 1])
        (0.75, 0.0)
    """
    q = shares(histogram)
    return float((q[:-1] * q[1:]).sum() / (q * q).sum())


def mean_rates(implicit: float, momentum: Floats, x: Floats) -> Floats:
    """Return by what factor an update shrinks the mean error when staleness is geometric.

    Args:
        implicit: momentum by asynchrony, m.
        momentum: explicit momenta, shape (b,).
        x: step sizes times curvature, shape (b,).

    Example:
        >>> mean_rates(0.0, np.array([0.0, 0.25]), np.array([0.25, 1.0])).round(3).tolist()
        [0.75, 0.5]

    References: Theorem 7.
    """
    cubic = np.zeros((len(x), 3, 3))
    cubic[:, 0, 0] = 1 + momentum + implicit - (1 - implicit) * x
    cubic[:, 0, 1] = -(momentum + implicit + momentum * implicit)
    cubic[:, 0, 2] = momentum * implicit
    cubic[:, 1, 0] = cubic[:, 2, 1] = 1
    rates: Floats = np.abs(np.linalg.eigvals(cubic)).max(axis=1)
    return rates


@dataclass(frozen=True, slots=True)
class Order:
    """Who finishes next.

    Args:
        groups: how many work at once.
        skew: how much likelier each is than the one that began just before it.

    Example:
        >>> [round(p, 2) for p in Order(3, 1.0).chances], Order(3, 0.0).chances
        ([0.33, 0.33, 0.33], (1.0, 0.0, 0.0))
    """

    groups: int
    skew: float

    @property
    def chances(self) -> tuple[float, ...]:
        """Probability to be next, of the oldest read first."""
        weights = [self.skew**i for i in range(self.groups)]
        return tuple(w / sum(weights) for w in weights)

    def staleness(self, most: int = 400) -> Floats:
        """Return shares of staleness from 0 to ``most``."""
        chances = np.array(self.chances)
        older = np.cumsum(chances) - chances
        at = np.zeros(self.groups)  # where a read is, by how many are older; it begins as the newest
        at[-1] = 1.0
        found = np.zeros(most + 1)
        for lag in range(most + 1):
            found[lag] = at @ chances
            ages = at * older
            at = at * (1 - older - chances)
            at[:-1] += ages[1:]
        return found

    @staticmethod
    def of(histogram: Sequence[float]) -> Order:
        """Return the order whose staleness has the mean and, as far as it can, the variance of a histogram."""
        q = shares(histogram)
        lags = np.arange(len(q))
        mean = float(q @ lags)
        groups = max(1, round(mean) + 1)
        if groups == 1:
            return Order(1, 0.0)
        return Order(groups, _skew(groups, float(q @ (lags - mean) ** 2)))


@lru_cache(maxsize=512)
def _skew(groups: int, variance: float) -> float:
    def spread(skew: float) -> float:
        q = Order(groups, skew).staleness()
        lags = np.arange(len(q))
        mean = float(q @ lags)
        return float(q @ (lags - mean) ** 2)

    low, high = 0.0, 1.0
    while spread(high) < variance and high < MOST_SKEW:
        low, high = high, 2 * high
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if spread(middle) < variance else (low, middle)
    return 0.0 if high < 1e-4 else high


def run_rates(order: Order, momentum: Floats, x: Floats) -> Floats:
    """Return by what factor an update shrinks the root mean square error of runs.

    Args:
        momentum: explicit momenta, shape (b,).
        x: step sizes times curvature, shape (b,).

    Raises:
        UserError: more groups than rates are reckoned for.

    Example:
        >>> run_rates(Order(1, 0.0), np.array([0.0]), np.array([0.25])).round(3).tolist()
        [0.75]
    """
    if order.groups > MOST_GROUPS:
        raise UserError(f"rates are reckoned for up to {MOST_GROUPS} groups, not {order.groups}")
    # The state is v and what each group read, oldest first; the newest read is w itself.
    size, newest = order.groups + 1, order.groups
    first, second = np.triu_indices(size)
    moments = np.zeros((len(x), len(first), len(first)))
    for i, chance in enumerate(order.chances):
        if chance == 0:
            continue
        step = np.zeros((len(x), size, size))
        step[:, 0, 0], step[:, 0, 1 + i] = momentum, -x
        kept = [1 + j for j in range(order.groups) if j != i]
        step[:, np.arange(1, newest), kept] = 1
        step[:, newest] = step[:, 0]
        step[:, newest, newest] += 1
        straight = step[:, first[:, None], first] * step[:, second[:, None], second]
        crossed = step[:, first[:, None], second] * step[:, second[:, None], first]
        moments += chance * np.where(first == second, straight, straight + crossed)
    return _growth(moments)


def _growth(matrices: Floats) -> Floats:
    """Return the square root of the growth of a power of each matrix by squaring; the last doubling counts."""
    log_norm = np.zeros(len(matrices))
    before = log_norm
    for _ in range(SQUARINGS):
        norm = np.maximum(np.abs(matrices).max(axis=(1, 2)), 1e-300)
        before = log_norm + np.log(norm)
        matrices = matrices / norm[:, None, None]
        matrices = matrices @ matrices
        log_norm = 2 * before
    after = log_norm + np.log(np.maximum(np.abs(matrices).max(axis=(1, 2)), 1e-300))
    rates: Floats = np.exp((after - before) / 2 ** (SQUARINGS - 1) / 2)
    return rates
