"""One scheme, one seed: four ranks in threads train through ``run.prepare`` and are tested on the way."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

import torch
from torch.nn.functional import cross_entropy

from omnizen.bench.curves.tasks import Task
from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.errors import NotFinite
from omnizen.protocols import Comm
from omnizen.strategies import Strategy
from omnizen.train.run import Run

RANKS = 4
TIMEOUT_S = 60.0
DIVERGED = 1e3
"""A test loss from here on, or none that is a number, ends a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How one curve is trained.

    Args:
        method: name in charts and tables.
        plan: what ``run.prepare`` is given; a scheme, or local steps.
        lr: step size.
        momentum: of the optimizer; 0 for schemes with their own.
    """

    method: str
    plan: str | Strategy
    lr: float
    momentum: float = 0.9


@dataclass(slots=True)
class Curve:
    """What came of one run, at each test.

    Args:
        steps: optimizer steps done.
        losses: on the test samples.
        accuracies: on the test samples.
        rx_bytes: received by rank 0 for gradients so far.
    """

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    rx_bytes: list[float] = field(default_factory=list)

    def add(self, step: int, loss: float, accuracy: float, rx_bytes: float) -> None:
        """Note a test."""
        self.steps.append(step)
        self.losses.append(loss)
        self.accuracies.append(accuracy)
        self.rx_bytes.append(rx_bytes)

    @property
    def diverged(self) -> bool:
        """Whether the last loss is no usable number."""
        return not self.losses or not math.isfinite(self.losses[-1]) or self.losses[-1] >= DIVERGED


def train(task: Task, setting: Setting, *, steps: int, tests: int, seed: int) -> Curve:
    """Train on four ranks; tested ``tests`` times, evenly spaced, the start and the end included."""
    model = task.model(seed)

    def body(comm: Comm) -> Curve:
        metered = Metered(comm)
        mine = copy.deepcopy(model)
        optimizer = torch.optim.SGD(mine.parameters(), lr=setting.lr, momentum=setting.momentum)
        with Run(metered, comm.sub(range(comm.size), "control") or comm, seed=seed) as run:
            run.prepare(mine, optimizer, plan=setting.plan)
            not_counted = metered.reading().rx_bytes
            curve = Curve()
            due = {round(steps * i / (tests - 1)) for i in range(tests)}
            for step in range(steps + 1):
                if step in due:
                    before = metered.reading().rx_bytes
                    fine = _tested(task, run, curve, step, before - not_counted)
                    not_counted += metered.reading().rx_bytes - before  # what a test of averaged weights takes
                    if not fine:
                        break
                if step == steps:
                    break
                inputs, targets = task.batch_at(step, comm.rank, seed)
                optimizer.zero_grad()
                cross_entropy(mine(inputs), targets).backward()
                try:
                    optimizer.step()
                except NotFinite:  # on all ranks
                    curve.add(step, DIVERGED, 0.0, curve.rx_bytes[-1])
                    break
        return curve

    return run_ranks(RANKS, body, timeout_s=TIMEOUT_S)[0]


def _tested(task: Task, run: Run, curve: Curve, step: int, rx_bytes: float) -> bool:
    """Test on every rank, so that all end together; returns whether to go on."""
    run.flush()  # does nothing where a round of local steps has just ended
    with run.averaged():
        loss, accuracy = task.tested(run.model)
    fine = math.isfinite(loss) and loss < DIVERGED
    curve.add(step, loss if fine else DIVERGED, accuracy, rx_bytes)
    return fine
