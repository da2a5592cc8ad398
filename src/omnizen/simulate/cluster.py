"""What is simulated: workers and their speeds, the gradients of a job, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from omnizen.comm.links import Floats
from omnizen.errors import UserError, nearest
from omnizen.simulate.network import Network
from omnizen.simulate.phases import Phase

Law = Literal["constant", "lognormal", "exponential"]
LAWS: tuple[Law, ...] = ("constant", "lognormal", "exponential")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Workers, and the links between them.

    Args:
        network: one link for each worker.
        sample_s: ``[n]``, seconds that each works on one sample, forward and backward.
        fixed_s: ``[n]`` or one number, seconds of a step whatever the batch is.
        law: how the time of a step varies around its mean; drawn anew for each worker and step.
        spread: standard deviation of the logarithm of a lognormal time.

    Raises:
        UserError: sizes differ, or the law does not exist.

    Example:
        >>> Cluster(Network.uniform(4, 12.5e6), np.full(4, 0.01)).size
        4
    """

    network: Network
    sample_s: Floats
    fixed_s: Floats | float = 0.0
    law: Law = "constant"
    spread: float = 0.1

    def __post_init__(self) -> None:
        if len(self.sample_s) != self.network.size:
            raise UserError(f"{len(self.sample_s)} workers have {self.network.size} links")
        if self.law not in LAWS:
            raise UserError(f"law: {nearest(self.law, LAWS)}")

    @property
    def size(self) -> int:
        """Workers."""
        return self.network.size

    def mean_s(self, batch: Floats) -> Floats:
        """Return the mean seconds in which each computes a batch of its own size ``[n]``; 0 for an empty one."""
        return np.where(batch > 0, self.sample_s * batch + self.fixed_s, 0.0)

    def draw(self, mean_s: Floats, rng: np.random.Generator) -> Floats:
        """Return one step's seconds of some workers around their means."""
        if self.law == "exponential":
            return mean_s * rng.standard_exponential(len(mean_s))
        if self.law == "lognormal":
            return mean_s * np.exp(self.spread * rng.standard_normal(len(mean_s)) - self.spread**2 / 2)
        return mean_s


@dataclass(frozen=True, slots=True)
class Reduction:
    """One gradient's, or bucket's, way over the links.

    Args:
        phases: one after another.
        ready: share of backward after which it may begin.
        cpu_s: seconds of merging, charged to the processor when backward has ended.
    """

    phases: Sequence[Phase]
    ready: float = 1.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a model asks of a cluster in a step.

    Args:
        reductions: of its gradients, in the order in which they become ready.
        model_bytes: of all parameters.
        backward_share: backward's share of computing.
        control: what ranks agree on in each step, beside the gradients.
        update_bytes_per_s: at which a server applies gradients; infinite where that is not known.
        crowded_share: what messages of servers get of a link where many ask many at once.
        ask_s: seconds that an empty question of servers takes with its answer, beside the links' own.
    """

    reductions: Sequence[Reduction]
    model_bytes: float
    backward_share: float = 2 / 3
    control: Sequence[Phase] = ()
    update_bytes_per_s: float = np.inf
    crowded_share: float = 1.0
    ask_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation gave.

    Args:
        update_s: seconds between two updates of the model, in the steady state.
        samples_per_s: samples that all workers together work through.
        updates: that were counted.
        busy: ``[n]``, share of the time in which each worker computes.
        staleness: how many counted updates rested on weights that were 0, 1, 2, ... updates old.
    """

    update_s: float
    samples_per_s: float
    updates: int
    busy: Floats
    staleness: list[int] = field(default_factory=list)


def checked_batch(batch: Floats, cluster: Cluster) -> Floats:
    """Return samples of each worker as numbers ``[n]``.

    Raises:
        UserError: a number of them is missing or negative, or nobody has any.
    """
    out = np.asarray(batch, dtype=np.float64)
    if out.shape != (cluster.size,) or out.min() < 0 or out.sum() <= 0:
        raise UserError(f"batch: one number of samples for each of {cluster.size} workers, some above 0")
    return out
