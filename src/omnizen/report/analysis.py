"""Figures of a run that tables, charts and sentences share, so that all of them show the same number."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean, median
from typing import TypeVar

from omnizen.events import StepEvent
from omnizen.plan.plan import Prediction
from omnizen.report.load import RankLog, RunData
from omnizen.spans import CATEGORIES

T = TypeVar("T")

PARTS = (*CATEGORIES, "other")
SLOWER_FROM = 1.1
"""A worker is called the slowest when it computes this many times as long as the median of the others."""
UNUSUAL_FROM = 0.1
"""A step is called unusual when it took this part longer than the typical step..."""
UNUSUAL_DEVIATIONS = 5.0
"""...and is this many median deviations away from it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The steady part of a run: after the plan was made, or from the second step where there is no plan.

    Args:
        first_step, last_step: steps that the figures are taken from.
        step_s: median over steps of the longest rank's step.
        rx_bytes, tx_bytes: bytes of one worker in one step, mean over workers and steps.
        busiest_rx_bytes: the same of the worker that receives most.
        parts: rank to part of the step to mean seconds; parts that were not recorded are absent.
        compute_s: rank to mean seconds of compute.
        samples_per_s: of all workers together; None where samples were not counted.
    """

    first_step: int
    last_step: int
    step_s: float
    rx_bytes: float
    tx_bytes: float
    busiest_rx_bytes: float
    parts: dict[int, dict[str, float]]
    compute_s: dict[int, float]
    samples_per_s: float | None

    @property
    def slowest(self) -> int | None:
        """The rank that computes longest."""
        return max(self.compute_s, key=lambda rank: self.compute_s[rank]) if self.compute_s else None

    @property
    def slowness(self) -> float:
        """How many times as long the slowest rank computes as the median of the others; 1 where there are none."""
        others_s = median([s for rank, s in self.compute_s.items() if rank != self.slowest] or [0.0])
        return self.compute_s[self.slowest] / others_s if others_s > 0 and self.slowest is not None else 1.0


@dataclass(frozen=True, slots=True)
class Unusual:
    """A step that took much longer than the typical one.

    Args:
        extra_s: seconds beyond the typical step.
        rank: the rank whose own compute was longest beyond its typical compute; None where compute explains
            less than half of the extra time (then it lies in communication).
        compute_extra_s: seconds by which that rank's compute was beyond its typical one.
    """

    step: int
    step_s: float
    extra_s: float
    rank: int | None
    compute_extra_s: float


def once(compute: Callable[[RunData], T]) -> Callable[[RunData], T]:
    """Keep what a function says of a run: a report asks for the same figures again and again."""

    @functools.wraps(compute)
    def kept(run: RunData) -> T:
        if compute.__name__ not in run.figures:
            run.figures[compute.__name__] = compute(run)
        found: T = run.figures[compute.__name__]
        return found

    return kept


@once
def summarise(run: RunData) -> Summary | None:
    """Return the steady figures of a run; None when no step was finished."""
    steady = {rank: steady_steps(run, log) for rank, log in run.ranks.items()}
    steady = {rank: steps for rank, steps in steady.items() if steps}
    if not steady:
        return None
    everything = [event for steps in steady.values() for event in steps]
    received = {rank: fmean([e.rx_bytes for e in steps]) for rank, steps in steady.items()}
    parts = {rank: _parts(steps) for rank, steps in steady.items()}
    step_s = median(step_lengths(steady.values()).values())
    samples = sum(fmean([e.samples for e in steps]) for steps in steady.values())
    return Summary(
        first_step=min(e.step for e in everything),
        last_step=max(e.step for e in everything),
        step_s=step_s,
        rx_bytes=fmean(received.values()),
        tx_bytes=fmean(fmean([e.tx_bytes for e in steps]) for steps in steady.values()),
        busiest_rx_bytes=max(received.values()),
        parts={rank: part for rank, part in parts.items() if part},
        compute_s={rank: part["compute"] for rank, part in parts.items() if "compute" in part},
        samples_per_s=samples / step_s if samples and step_s else None,
    )


def steady_steps(run: RunData, log: RankLog) -> list[StepEvent]:
    """Return the steps after the one that the plan was made in (after the first one where no plan came), or all.

    Making a plan takes time and bytes (trials) that belong to no ordinary step.
    """
    first = 1 + max((plan.step for other in run.ranks.values() for plan in other.plans), default=0)
    return [event for event in log.steps if event.step >= first] or log.steps


def predicted(run: RunData, summary: Summary | None) -> Prediction | None:
    """Return what the plan predicted for the steps that count; None where none of them went by the plan."""
    in_force = max((plan.step for log in run.ranks.values() for plan in log.plans), default=0)
    if run.plan is None or summary is None or summary.first_step < in_force:
        return None
    return run.plan.prediction


@once
def all_lengths(run: RunData) -> dict[int, float]:
    """Return step to the longest rank's seconds, of all steps."""
    return step_lengths(log.steps for log in run.ranks.values())


def step_lengths(steps_by_rank: Iterable[list[StepEvent]]) -> dict[int, float]:
    """Return step to the longest rank's seconds, in the order of steps."""
    longest: defaultdict[int, float] = defaultdict(float)
    for steps in steps_by_rank:
        for event in steps:
            longest[event.step] = max(longest[event.step], event.step_s)
    return dict(sorted(longest.items()))


@once
def losses(run: RunData) -> list[tuple[int, float, float]]:
    """Return (step, seconds since the start, loss), the loss averaged over the ranks that recorded it."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    ends: dict[int, float] = {}
    for log in run.ranks.values():
        for event in log.steps:
            if event.loss is not None:
                found[event.step].append(event.loss)
                ends[event.step] = max(ends.get(event.step, 0.0), event.start_s + event.step_s)
    return [(step, ends[step], sum(found[step]) / len(found[step])) for step in sorted(found)]


def loss_at_equal_steps(runs: list[RunData]) -> tuple[int, list[float]] | None:
    """Return the last step for which every run has a loss, and the losses there; None when there is none."""
    curves = [{step: loss for step, _, loss in losses(run)} for run in runs]
    common = set.intersection(*(set(curve) for curve in curves))
    return (max(common), [curve[max(common)] for curve in curves]) if common else None


def link_bytes(run: RunData) -> dict[tuple[int, int], float]:
    """Return (source, destination) to mean bytes of one steady step, as counted by the receiver."""
    total: dict[tuple[int, int], float] = {}
    for rank, log in run.ranks.items():
        steps = steady_steps(run, log)
        for event in steps:
            for peer, received in event.rx_bytes_by_peer.items():
                total[peer, rank] = total.get((peer, rank), 0.0) + received / len(steps)
    return total


def unusual_steps(run: RunData, limit: int = 5) -> list[Unusual]:
    """Return the steady steps that took longest beyond the typical step, each with the rank that explains it."""
    steady = {rank: steady_steps(run, log) for rank, log in run.ranks.items()}
    lengths = step_lengths(steady.values())
    if not lengths:
        return []
    typical_s = median(lengths.values())
    usual = {rank: median(e.compute_s for e in steps) for rank, steps in steady.items() if steps}
    compute = {(rank, e.step): e.compute_s for rank, steps in steady.items() for e in steps}
    deviation_s = median(abs(length - typical_s) for length in lengths.values())
    limit_s = max(UNUSUAL_FROM * typical_s, UNUSUAL_DEVIATIONS * deviation_s)
    found = []
    for step, length in lengths.items():
        extra_s = length - typical_s
        if extra_s <= limit_s:
            continue
        beyond = {rank: compute[rank, step] - usual[rank] for rank in usual if (rank, step) in compute}
        worst = max(beyond, key=lambda rank: beyond[rank])
        explains = beyond[worst] >= extra_s / 2
        found.append(Unusual(step, length, extra_s, worst if explains else None, beyond[worst]))
    return sorted(found, key=lambda u: -u.extra_s)[:limit]


def _parts(steps: list[StepEvent]) -> dict[str, float]:
    means = {part: fmean(list(map(attrgetter(f"{part}_s"), steps))) for part in CATEGORIES}
    if not any(means.values()):
        return {}
    rest = fmean([e.step_s for e in steps]) - sum(means.values())
    return means | {"other": max(rest, 0.0)}
