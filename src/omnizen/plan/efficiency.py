"""Hardware efficiency: seconds between two updates, by how the ranks are grouped.

Omnivore's model, with one server for the shared layers: ``T(g) = max(t_fc, k t_cn, (t_conv(k) + t_fc) / g)`` for g
groups of k ranks (``one_server``). Ours has a server on each rank that holds 1/n of the weights: a group adds its
gradients up (a ring), each member pushes its k-th part to the servers outside and pulls the new weights, and the
group gathers them. A rank's link then carries its own group's traffic and a part of the others' (``of_layout``).
Where many ask many at once links give less than one flow gets: how much less was measured (``CrowdFacts``).
Both become a closed network of groups that compute, then use links (``plan/queues.py``).

Where work times vary, a group waits for the slowest of its members (for exponential times, the k-th harmonic number
times the mean), and groups wait for each other at the links. Server arithmetic and overlap of a group's own sum
with its backward pass are not counted.

References: Hadjis et al. 2016, Omnivore.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from omnizen.errors import UserError
from omnizen.measure.facts import CrowdFacts, DeviceFacts, Facts
from omnizen.plan.layouts import Layout
from omnizen.plan.links import without_noise
from omnizen.plan.queues import Customer, cycle_seconds

SPREAD_OF_NORMAL = 1.68
"""(80th - 20th percentile) / mean of normal times with variation 1."""
FASTER = 0.10
"""More groups must make updates this share faster to be worth their staleness (the authors' own threshold)."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What one grouping is expected to give.

    Args:
        layout: the grouping.
        update_s: mean seconds between two updates of the shared weights, whoever's.
        cycle_s: by group, seconds from one of its updates to the next.
        compute_s: by group, seconds of a cycle in which it computes, waiting for its slowest member included.
        staleness: by group, the mean number of others' updates during one of its cycles.
        bottleneck: what limits it, in words.
    """

    layout: Layout
    update_s: float
    cycle_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    staleness: tuple[float, ...]
    bottleneck: str

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.cycle_s)


def one_server(
    workers: int, groups: int, *, compute_s: float, copy_s: float, server_s: float, variation: float = 0.0
) -> float:
    """Return seconds between two updates when all groups use one server of the shared layers.

    Args:
        workers: ranks that compute, a multiple of ``groups``.
        compute_s: seconds in which one rank would work a group's whole batch (t_cc).
        copy_s: seconds that the model server needs for one copy of the weights (t_cn).
        server_s: seconds that the server of the shared layers needs for a batch (t_fc).
        variation: coefficient of variation of all times; 0 is constant, 1 exponential.

    Raises:
        UserError: the ranks cannot be divided so, or a time is negative.

    Example:
        >>> [one_server(8, g, compute_s=8.0, copy_s=0.0, server_s=1.0) for g in (1, 2, 4, 8)]
        [2.0, 1.5, 1.25, 1.125]
    """
    if groups < 1 or workers % groups:
        raise UserError(f"{workers} workers cannot be divided into {groups} groups of equally many")
    members = workers // groups
    computing_s = slowest((compute_s / members,) * members, variation)
    copies_s = members * copy_s
    shared_s = max(server_s, copies_s)
    think_s = max(computing_s, copies_s) + server_s - shared_s
    customer = Customer(think_s, (server_s, copies_s))
    return cycle_seconds([customer] * groups, variation)[0] / groups


def slowest(seconds: Sequence[float], variation: float) -> float:
    """Return the mean time of the slowest of some workers.

    A time is taken to be a constant part of ``1 - variation`` and an exponential rest (all exponential from 1 on).

    Args:
        seconds: each worker's mean.

    Example:
        >>> slowest([1.0, 1.0], 0.0), round(slowest([1.0] * 4, 1.0), 3)  # 1 + 1/2 + 1/3 + 1/4
        (1.0, 2.083)
    """
    varying = min(variation, 1.0)
    longest = max(seconds)
    if varying == 0 or len(seconds) == 1:
        return longest
    harmonic = sum(1 / i for i in range(1, len(seconds) + 1))
    if min(seconds) == longest:
        return longest * (1 + varying * (harmonic - 1))
    least = max((1 - varying) * s for s in seconds)  # nobody is done earlier who must be waited for
    # The mean is the integral of the probability that anyone is still at work.
    times = np.linspace(least, least + varying * longest * (harmonic + 20), 4001)
    done = np.ones_like(times)
    for s in seconds:
        done *= -np.expm1(-np.maximum(times - (1 - varying) * s, 0) / (varying * s))
    left = 1 - done
    return float(least + ((left[1:] + left[:-1]) / 2).sum() * (times[1] - times[0]))


def compute_seconds(device: DeviceFacts, samples: int, fallback: Facts | None = None) -> float:
    """Return the seconds in which a device works through some samples, by its measured rates.

    Between and beyond measured batch sizes seconds are linear in samples, from one size in proportion.

    Args:
        fallback: facts whose common step stands in for a device without rates.

    Raises:
        UserError: neither was measured.
    """
    points = sorted((int(size), int(size) / rate) for size, rate in device.samples_per_s.items())
    if not points:
        step = fallback.step if fallback else None
        if step is None or not step.samples:
            raise UserError(f"the facts hold no rate of rank {device.rank}; run `omnizen measure` with the model")
        return samples * step.compute_s / step.samples
    if len(points) == 1:
        size, seconds = points[0]
        return samples * seconds / size
    above = next((i for i, (size, _) in enumerate(points) if size >= samples), len(points) - 1)
    (a, t_a), (b, t_b) = points[max(above, 1) - 1], points[max(above, 1)]
    # Timing noise must not make fewer samples free.
    return max(t_a + (samples - a) * (t_b - t_a) / (b - a), 1e-3 * t_a)


def measured_variation(facts: Facts) -> float:
    """Return the coefficient of variation of step times, the mean over devices and batch sizes; 0 if unmeasured."""
    spreads = [s for device in facts.devices for s in device.samples_per_s_spread.values()]
    return sum(spreads) / len(spreads) / SPREAD_OF_NORMAL if spreads else 0.0


def of_layout(
    facts: Facts, layout: Layout, *, nbytes: int | None = None, variation: float | None = None
) -> Efficiency:
    """Predict one grouping over sharded servers.

    Args:
        nbytes: bytes of gradients, and of weights, that travel in an update; all of the facts' by default.
        variation: coefficient of variation of work times; as measured by default.

    Raises:
        UserError: the facts are of another number of ranks, or lack a rate or a link.

    Example:
        >>> of_layout(facts, even(4, 2, 32)).update_s  # doctest: +SKIP
        0.41
    """
    size = layout.size
    if facts.world_size != size:
        raise UserError(f"the facts are of {facts.world_size} ranks, the layout of {size}")
    nbytes = sum(g.nbytes for g in facts.gradients) if nbytes is None else nbytes
    variation = measured_variation(facts) if variation is None else variation
    devices = {device.rank: device for device in facts.devices}
    missing = sorted(set(range(size)) - set(devices))
    if missing:
        raise UserError(f"the facts hold no device of rank {missing[0]}; run `omnizen measure` again")
    own_s = [compute_seconds(devices[rank], layout.samples[rank], facts) for rank in range(size)]
    compute_s = tuple(slowest([own_s[r] for r in group], variation) for group in layout.groups)
    network = _Network.of(facts) if size > 1 else _Network({}, {}, {}, 0.0)
    if len(layout.groups) > 1:
        network = network.crowded(facts.crowd)
    customers = [
        network.customer(group, compute_s[number], layout, nbytes) for number, group in enumerate(layout.groups)
    ]
    # Members of a group even out: the slowest of k varies less than one of them.
    cycles = cycle_seconds(customers, variation if len(layout.groups) > 1 else 0.0)
    rate = sum(1 / seconds for seconds in cycles)
    return Efficiency(
        layout,
        1 / rate,
        cycles,
        compute_s,
        tuple(seconds * (rate - 1 / seconds) for seconds in cycles),
        _bottleneck(layout, customers, cycles),
    )


def _bottleneck(layout: Layout, customers: Sequence[Customer], cycles: Sequence[float]) -> str:
    loads = [
        sum(c.demand_s[station] / s for c, s in zip(customers, cycles, strict=True))
        for station in range(len(customers[0].demand_s))
    ]
    if loads and max(loads) > 0.95:
        station = max(range(len(loads)), key=lambda i: loads[i])
        direction, rank = ("from", station) if station < layout.size else ("to", station - layout.size)
        return f"the link {direction} rank {rank}, {min(1.0, loads[station]):.0%} busy"
    computing = sum(c.think_s / s for c, s in zip(customers, cycles, strict=True)) / len(customers)
    return (
        f"compute, {computing:.0%} of a cycle" if computing >= 0.5 else f"transfers, {1 - computing:.0%} of a cycle"
    )


@dataclass(frozen=True, slots=True)
class _Network:
    """Links of all ranks: seconds a byte out of and into each, spread over its peers, and of pairs; latency."""

    out: Mapping[int, float]
    into: Mapping[int, float]
    pair: Mapping[tuple[int, int], float]
    latency_s: float
    crowded_share: float = 1.0
    ask_s: float | None = None

    @classmethod
    def of(cls, facts: Facts) -> _Network:
        rate = {(link.source, link.dest): link.bandwidth_bytes_per_s for link in facts.links}
        ranks = range(facts.world_size)
        missing = next(((a, b) for a in ranks for b in ranks if a != b and (a, b) not in rate), None)
        if missing:
            a, b = missing
            raise UserError(f"the facts hold no link from rank {a} to rank {b}; run `omnizen measure` again")
        pair = {way: 1 / r for way, r in without_noise(rate, len(ranks)).items()}
        others = len(ranks) - 1
        return cls(
            {r: math.fsum(pair[r, p] for p in ranks if p != r) / others for r in ranks},
            {r: math.fsum(pair[p, r] for p in ranks if p != r) / others for r in ranks},
            pair,
            max(link.latency_s for link in facts.links),
        )

    def crowded(self, crowd: CrowdFacts | None) -> _Network:
        """Return the network whose servers take as long as was measured with everybody asking at once."""
        if crowd is None:
            return self
        size = len(self.out)
        apart = Layout(tuple((rank,) for rank in range(size)), (1,) * size)
        free = [self.customer(group, 0.0, apart, size * crowd.nbytes) for group in apart.groups]
        share = max(cycle_seconds(free)) / max(crowd.cycle_s - crowd.ask_s, 1e-9)
        return replace(self, crowded_share=min(1.0, share), ask_s=crowd.ask_s)

    def customer(self, group: Sequence[int], compute_s: float, layout: Layout, nbytes: int) -> Customer:
        """Return a group that computes, pushes, and then waits for what it pulls."""
        groups = len(layout.groups)
        think_s = compute_s + self.rounds_s(len(group), groups)
        if groups > 1:
            think_s += self.asked(len(group), layout.size, nbytes) * max(self.into[rank] for rank in group)
        return Customer(think_s, self.demand_s(group, layout.size, nbytes, alone=groups == 1))

    def rounds_s(self, members: int, groups: int) -> float:
        """Return the latency of one cycle: passes of a ring, and a push with its answer to servers."""
        asked_s = 2 * self.latency_s if self.ask_s is None else self.ask_s
        return self.latency_s * (3 if groups > 1 else 2) * (members - 1) + (asked_s if groups > 1 else 0.0)

    def asked(self, members: int, size: int, nbytes: int) -> float:
        """Return bytes that a member pushes to servers outside of its group: more where they are slow."""
        return (size - members) / members * nbytes / size / self.crowded_share

    def demand_s(self, group: Sequence[int], size: int, nbytes: int, *, alone: bool) -> tuple[float, ...]:
        """Return the seconds that a cycle of this group keeps each rank's link busy: all ways out, then all in."""
        members = len(group)
        ring = (2 if alone else 3) * (members - 1) / members * nbytes  # summed, and the new weights gathered
        pushed = 0.0 if alone else self.asked(members, size, nbytes)  # and pulled, by each member
        served = 0.0 if alone else nbytes / size / self.crowded_share  # taken, and answered, by each other server
        busy: list[float] = []
        for which, ends in enumerate((self.out, self.into)):
            for rank in range(size):
                seconds = 0.0
                if rank in group:
                    at = group.index(rank)
                    neighbour = group[(at + (1, -1)[which]) % members]
                    way = (rank, neighbour) if which == 0 else (neighbour, rank)
                    seconds += ring * self.pair.get(way, 0.0)
                    seconds += pushed * ends.get(rank, 0.0)
                else:
                    seconds += served * ends.get(rank, 0.0)
                busy.append(seconds)
        return tuple(busy)


def saturation(update_s: Mapping[int, float], faster: float = FASTER) -> int:
    """Return the number of groups beyond which more do not make updates clearly faster.

    Args:
        update_s: seconds between updates by number of groups.

    Raises:
        UserError: nothing was given.

    Example:
        >>> saturation({1: 4.0, 2: 2.0, 4: 1.0, 8: 1.0})
        4
    """
    if not update_s:
        raise UserError("no number of groups was given")
    ordered = sorted(update_s)
    best = ordered[0]
    for groups in ordered[1:]:
        if update_s[groups] * (1 + faster) > update_s[best]:
            break
        best = groups
    return best
