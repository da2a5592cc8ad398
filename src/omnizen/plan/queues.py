"""How long customers of a closed network wait for each other: bounds, mean-value analysis, and a simulation.

A customer thinks, then uses what it shares with others, and begins again. It may use several stations at once (a
push loads the sender's link and those of all servers); then the one that takes longest counts. With constant times
customers find turns in which nobody waits as long as no station is full, so the asymptotic bound is exact. With
exponential times mean-value analysis is. In between seconds are interpolated by ``variation ** 0.6``, which is
within 3 % of simulations with gamma and shifted exponential times (``tests/plan/test_queues.py``).

References: Reiser and Lavenberg 1980 (mean-value analysis); Hadjis et al. 2016, Omnivore.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from omnizen.errors import UserError

MOST_EXACT = 9
"""Unlike customers whose subsets mean-value analysis visits; beyond, a fixed point is taken (up to 9 % longer)."""
ROUNDS = 200
"""Of the fixed point; it halves its error in each, or nearly."""


@dataclass(frozen=True, slots=True)
class Customer:
    """One who thinks and then uses stations.

    Args:
        think_s: seconds of a cycle in which it needs nothing that others use, at least 0.
        demand_s: by station, the seconds that a cycle of its keeps the station busy, at least 0.
    """

    think_s: float
    demand_s: tuple[float, ...]

    @property
    def service_s(self) -> float:
        """Seconds of a cycle at the stations when nobody else is there."""
        return max(self.demand_s, default=0.0)

    @property
    def alone_s(self) -> float:
        """Seconds of a cycle when nobody else is there."""
        return self.think_s + self.service_s


def cycle_seconds(customers: Sequence[Customer], variation: float = 0.0) -> tuple[float, ...]:
    """Return the mean seconds of each customer's cycle.

    Args:
        variation: coefficient of variation of its times; 0 is constant, 1 exponential.

    Raises:
        UserError: no customer, one that takes no time, different stations, or a variation that is no number from 0.

    Example:
        >>> group = Customer(think_s=3.0, demand_s=(1.0,))
        >>> cycle_seconds([group] * 4), [round(s, 2) for s in cycle_seconds([group] * 4, variation=1.0)]
        ((4.0, 4.0, 4.0, 4.0), [5.04, 5.04, 5.04, 5.04])
    """
    _check(customers, variation)
    constant = _in_turns(customers)
    if variation == 0:
        return constant
    share = variation**0.6
    exponential = _mean_value(customers)
    return tuple(c + share * max(0.0, e - c) for c, e in zip(constant, exponential, strict=True))


def between(customers: Sequence[Customer], variation: float = 0.0) -> float:
    """Return the mean seconds between two ends of cycles, whoever's they are.

    Example:
        >>> between([Customer(3.0, (1.0,))] * 2)
        2.0
    """
    return 1 / sum(1 / seconds for seconds in cycle_seconds(customers, variation))


def _check(customers: Sequence[Customer], variation: float) -> None:
    if not customers:
        raise UserError("a network needs at least one customer")
    if len({len(c.demand_s) for c in customers}) > 1:
        raise UserError("all customers must name their seconds at the same stations")
    for number, customer in enumerate(customers):
        times = (customer.think_s, *customer.demand_s)
        if not all(math.isfinite(t) and t >= 0 for t in times) or customer.alone_s <= 0:
            raise UserError(f"customer {number} must take a time of at least 0 everywhere and more than 0 in all")
    if not (math.isfinite(variation) and variation >= 0):
        raise UserError(f"variation must be a number from 0, got {variation}")


def _in_turns(customers: Sequence[Customer]) -> tuple[float, ...]:
    """Return cycles with constant times: undisturbed, or lengthened alike by the wait for the fullest station."""
    alone = [c.alone_s for c in customers]
    longest_wait = 0.0
    for station in range(len(customers[0].demand_s)):
        demand = [c.demand_s[station] for c in customers]
        users = [(a, d) for a, d in zip(alone, demand, strict=True) if d > 0]

        def load(wait: float, users: list[tuple[float, float]] = users) -> float:
            return sum(d / (a + wait) for a, d in users)

        if load(longest_wait) <= 1:
            continue
        low, high = longest_wait, sum(demand)  # with a wait of all demands the station is never full
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if load(middle) > 1 else (low, middle)
        longest_wait = high
    return tuple(a + (longest_wait if c.service_s > 0 else 0.0) for a, c in zip(alone, customers, strict=True))


def _mean_value(customers: Sequence[Customer]) -> tuple[float, ...]:
    if len(set(customers)) == 1:
        return _alike(customers[0], len(customers))
    return _by_subsets(customers) if len(customers) <= MOST_EXACT else _fixed_point(customers)


def _alike(customer: Customer, number: int) -> tuple[float, ...]:
    waiting = cycle = 0.0
    for present in range(1, number + 1):
        response = customer.service_s * (1 + waiting)
        cycle = customer.think_s + response
        waiting = present * response / cycle
    return (cycle,) * number


def _by_subsets(customers: Sequence[Customer]) -> tuple[float, ...]:
    """Return exact cycles: who arrives finds the network as the others alone would keep it."""

    @cache
    def cycles(present: frozenset[int]) -> dict[int, tuple[float, float]]:
        out = {}
        for j in present:
            others = cycles(present - {j})
            there = {i: response / cycle for i, (response, cycle) in others.items()}
            response = _response(customers, j, there)
            out[j] = (response, customers[j].think_s + response)
        return out

    found = cycles(frozenset(range(len(customers))))
    return tuple(found[j][1] for j in range(len(customers)))


def _fixed_point(customers: Sequence[Customer]) -> tuple[float, ...]:
    """Return cycles where each finds the others as they are on average (Schweitzer)."""
    kinds = Counter(customers)
    rows = list(kinds)
    count = np.array([kinds[c] for c in rows], dtype=float)
    think = np.array([c.think_s for c in rows])
    demand = np.array([c.demand_s for c in rows])
    share = demand / np.maximum(demand.max(axis=1, keepdims=True), 1e-300)
    response = demand.max(axis=1)
    for _ in range(ROUNDS):
        there = response / (think + response)
        met = (count * there) @ share - there[:, None] * share
        response = (response + (demand * (1 + met)).max(axis=1)) / 2
    cycles = dict(zip(rows, (think + response).tolist(), strict=True))
    return tuple(cycles[c] for c in customers)


def _response(customers: Sequence[Customer], j: int, there: dict[int, float]) -> float:
    """Return customer j's seconds at the stations, others being there for these shares of time."""
    longest = 0.0
    for station, demand in enumerate(customers[j].demand_s):
        if demand:
            met = 0.0
            for i, share in there.items():
                if customers[i].service_s:
                    met += share * customers[i].demand_s[station] / customers[i].service_s
            longest = max(longest, demand * (1 + met))
    return longest


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a simulation of a network with one station counted.

    Args:
        between_s: mean seconds between two ends of cycles.
        staleness: number of cycles by how many of others' ended between their begin and end.
    """

    between_s: float
    staleness: tuple[int, ...]


def simulate(
    customers: Sequence[Customer], variation: float = 0.0, *, cycles: int = 20_000, seed: int = 0
) -> Simulated:
    """Play a network with one station, first come first served.

    Times are a constant part and an exponential one, which gives the variation asked for up to 1, and gamma above.

    Raises:
        UserError: as ``cycle_seconds``, or not exactly one station.

    Example:
        >>> simulate([Customer(3.0, (1.0,))] * 2, cycles=1000).staleness
        (0, 900)
    """
    _check(customers, variation)
    if len(customers[0].demand_s) != 1:
        raise UserError(f"one station can be simulated, not {len(customers[0].demand_s)}")
    rng = np.random.default_rng(seed)

    def draw(mean: float) -> float:
        if mean == 0 or variation == 0:
            return mean
        if variation <= 1:
            return mean * (1 - variation) + float(rng.exponential(mean * variation))
        return float(rng.gamma(variation**-2, mean * variation**2))

    # Constant times must not make all arrive at once for ever: each begins its own part of a cycle later.
    spread = [c.alone_s * (j + 1) / len(customers) for j, c in enumerate(customers)]
    arrivals = [(spread[j] if variation == 0 else draw(c.think_s), j) for j, c in enumerate(customers)]
    heapq.heapify(arrivals)
    began = [0] * len(customers)
    stale: Counter[int] = Counter()
    free = since = 0.0
    skipped = cycles // 10
    for done in range(cycles):
        now, j = heapq.heappop(arrivals)
        free = max(free, now) + draw(customers[j].demand_s[0])
        if done == skipped:
            since, stale = free, Counter()
        if done >= skipped:
            stale[done - began[j]] += 1
        began[j] = done + 1
        heapq.heappush(arrivals, (free + draw(customers[j].think_s), j))
    between_s = (free - since) / max(1, cycles - 1 - skipped)
    return Simulated(between_s, tuple(stale[lag] for lag in range(max(stale) + 1)))
