"""One stretch of training from given weights: who works with whom, and how it went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omnizen.plan.executions import mean_steps
from omnizen.plan.layouts import Layout
from omnizen.plan.tuner.actions import Result
from omnizen.strategies import Strategy, groups, local_sgd
from omnizen.train.tuning.task import Weights

Schemes = str | Mapping[str, str]
"""The name of a scheme, or names by pattern of parameter."""
MOST_LOSSES, LAST_LOSSES = 400, 100
"""Of a result that is kept in a file."""


@dataclass(frozen=True, slots=True)
class Way:
    """A strategy with its sizes.

    Args:
        layout: groups of ranks, and each rank's samples in a step.
        every: local steps of each rank between two averages; () averages gradients in each step.

    Example:
        >>> from omnizen.plan.layouts import even
        >>> Way(even(4, 2, 32)).title, Way(even(4, 1, 32), every=(4, 4, 4, 1)).title
        ('2 groups', '3.25 local steps')
    """

    layout: Layout
    every: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """Name it in a few words."""
        if self.every:
            return f"{mean_steps(self.every):g} local steps"
        count = len(self.layout.groups)
        return "synchronous" if count == 1 else f"{count} groups"

    def plan(self, schemes: Schemes, reducer: str) -> Schemes | Strategy:
        """Return what ``run.prepare`` takes.

        Args:
            schemes: of synchronous training.
            reducer: scheme of sparse tables inside groups.
        """
        if self.every:
            return local_sgd(self.every)
        return schemes if len(self.layout.groups) == 1 else groups(self.layout.groups, reducer)

    @property
    def teams(self) -> tuple[tuple[int, ...], ...]:
        """The ranks that share each update."""
        return tuple((rank,) for rank in range(self.layout.size)) if self.every else self.layout.groups


@dataclass(frozen=True, slots=True)
class Update:
    """One update of the shared weights, or one local step.

    Args:
        at_s: seconds on the trainer's clock.
        loss: mean over its samples, at the weights before it.
    """

    at_s: float
    loss: float
    samples: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """How a stretch went; equal on all ranks.

    Args:
        updates: of all ranks, in order of time.
        staleness: counts from 0 on; () without compute groups.
        seconds: how long it took.
        end: weights at its end.
        error: why it could not be carried out.
        interrupted: somebody asked for its end.
    """

    updates: tuple[Update, ...]
    staleness: tuple[int, ...]
    seconds: float
    end: Weights
    error: str = ""
    interrupted: bool = False

    def result(self, *, stop: bool = False) -> Result:
        """Return what a tuner is told."""
        losses = tuple(u.loss for u in self.updates)
        return Result(self.seconds, len(losses), losses, self.staleness, self.error, stop)

    @property
    def diverged(self) -> bool:
        """Whether a loss was no number."""
        return any(not math.isfinite(u.loss) for u in self.updates)


def merged(taken: Sequence[Sequence[tuple[float, float]]], way: Way) -> list[Update]:
    """Return all ranks' updates in order of time; a team's loss is the mean over its samples.

    Args:
        taken: (seconds, loss) of each step, by rank.
    """
    updates, samples = [], way.layout.samples
    for team in way.teams:
        total = sum(samples[r] for r in team)
        for step in range(min(len(taken[r]) for r in team)):
            loss = sum(taken[r][step][1] * samples[r] for r in team) / total
            updates.append(Update(max(taken[r][step][0] for r in team), loss, total))
    return sorted(updates, key=lambda u: u.at_s)


def thinned(losses: Sequence[float]) -> tuple[float, ...]:
    """Return some of many losses: the last ones and others evenly; all of them where one is no number."""
    if len(losses) <= MOST_LOSSES or not all(abs(loss) < float("inf") for loss in losses):
        return tuple(losses)
    early = losses[:-LAST_LOSSES]
    every = -(-len(early) // (MOST_LOSSES - LAST_LOSSES))
    return (*early[::every], *losses[-LAST_LOSSES:])
