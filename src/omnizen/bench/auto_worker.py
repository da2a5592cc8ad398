"""One worker of ``omnizen bench auto``: trains by one method until the target. Run on every host as

``python -m omnizen.bench.auto_worker JOB.json`` with the environment that torchrun sets.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from pydantic import Field

from omnizen.bench.errand import Errand, WorkerAnswer, do_errand
from omnizen.bench.watch import leave
from omnizen.errors import UserError
from omnizen.plan.tuner import Carrier, Done, Point, Probe, Result, Settings, Train, Tuner
from omnizen.train.tuning import Stretch, Trainer, Way
from omnizen.train.tuning.ending import StoreBoard
from omnizen.train.tuning.task import Weights

if TYPE_CHECKING:
    from omnizen.bench.cases.case import Case
    from omnizen.measure.facts import Facts
    from omnizen.plan.layouts import Layout

LINKS_S, SPEED_STEPS = 1.0, 4
HOPELESS = 1000.0
"""A loss beyond this ends a stretch; so does one that is no number."""


class AutoJob(Errand):
    """What every worker is told.

    Args:
        batch: samples of each group's batch.
        fixed: (groups, step size, momentum) to train with; None lets the tuner choose.
        even: equal shares of a batch, whatever the speeds; else by speed.
        target: mean of the last ``smooth`` losses at which training ends.
        most_s: seconds of training and searching after which it ends in any case.
        step: step size that is usual for the case with momentum 0.9 and one group.
    """

    case: str
    batch: int
    fixed: tuple[int, float, float] | None
    even: bool
    target: float
    most_s: float
    step: float
    probe_s: float
    overhead: float
    search: str
    smooth: int
    seed: int


class AutoAnswer(WorkerAnswer):
    """What one worker measured; the numbers are those of all, rank 0's are taken.

    Args:
        reached_s: seconds from the first measurement to the target; None when it was not reached.
        clock_s: seconds that it trained and searched in all.
        update_s: predicted and measured seconds between two updates, by number of groups.
        notes: decisions of the tuner as (phase, kind, text).
    """

    reached_s: float | None = None
    clock_s: float = 0.0
    updates: int = 0
    last_loss: float | None = None
    update_s: dict[str, tuple[float, float]] = Field(default_factory=dict)
    point: tuple[int, float, float] | None = None
    overhead: float = 0.0
    staleness: list[int] = Field(default_factory=list)
    notes: list[tuple[str, str, str]] = Field(default_factory=list)


def main(path: str) -> int:
    """Do a job and leave the answer in its folder; returns the exit status."""
    job = AutoJob.model_validate_json(Path(path).read_text(encoding="utf-8"))
    return do_errand(job, AutoAnswer(rank=int(os.environ["RANK"])), work)


def work(job: AutoJob, answer: AutoAnswer) -> None:
    """Measure, then train by the job's method until the target."""
    from omnizen.bench.cases import make_case

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=job.limit_s))
    case = make_case(job.case)
    racer = Racer(case, job, answer)
    dist.barrier()
    racer.trainer.start_clock()
    if job.fixed is not None:
        racer.lay_out()
        racer.until_target(Point(*job.fixed))
    else:
        tuner = Tuner(racer.settings())
        carrier = Carrier(tuner, racer.train, racer.trainer.first())
        while carrier.step() is not None:
            pass
        answer.notes = [(n.phase, n.kind, n.text) for n in tuner.notes]
        answer.overhead = tuner.overhead
        action = tuner.next()
        if isinstance(action, Done) and answer.reached_s is None:
            answer.failed = f"the target was not reached in {answer.clock_s:.0f} s: {action.reason}"
    if answer.reached_s is None and not answer.failed:
        answer.failed = f"the target was not reached in {answer.clock_s:.0f} s (loss {answer.last_loss})"


class CaseTask:
    """A case's batches, of which a rank's next one is another in each stretch."""

    divisible = True

    def __init__(self, case: Case, job: AutoJob) -> None:
        self.case, self.job, self.step = case, job, 0
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def make_model(self) -> torch.nn.Module:
        """Return a new model."""
        return self.case.make_model(sparse=False, seed=self.job.seed)

    def make_optimizer(self, model: torch.nn.Module, point: Point) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(model.parameters(), lr=point.step, momentum=max(point.momentum, 0.0))

    def batches(self, samples: int) -> Iterator[Any]:
        """Return batches without end."""
        seed = self.job.seed + samples
        while True:
            self.step += 1
            yield self.case.batch_at(self.step - 1, rank=self.rank, size=self.size, batch=samples, seed=seed)

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """Return the case's loss."""
        return self.case.loss(model, batch)


class Racer:
    """Trains one stretch after the other, until the target."""

    def __init__(self, case: Case, job: AutoJob, answer: AutoAnswer) -> None:
        import omnizen as oz
        from omnizen.comm.torch_pg import from_default

        self.job, self.answer = job, answer
        self.task = CaseTask(case, job)
        self.rank, self.size = self.task.rank, self.task.size
        self.speeds = [1.0] * self.size
        self.trainer = Trainer(
            self.task,
            from_default(job.limit_s, name="auto"),
            lambda groups: Way(self.layout(groups)),
            begin=lambda: oz.init(timeout_s=job.limit_s, seed=job.seed),
            board=StoreBoard(),
            reducer="dense",
        )

    def lay_out(self) -> None:
        """Measure each rank's speed, all at once."""
        share = max(1, self.job.batch // self.size)
        model = self.task.make_model()
        seconds = []
        for batch in islice(self.task.batches(share), SPEED_STEPS):
            start_s = time.monotonic()
            self.task.loss(model, batch).backward()
            seconds.append(time.monotonic() - start_s)
        self.task.step = 0
        self.speeds = self.trainer.gather(share / median(seconds[1:]))

    def layout(self, groups: int) -> Layout:
        """Return who works with whom on how much."""
        from omnizen.plan.layouts import by_speed, even

        if self.job.even:
            return even(self.size, groups, self.job.batch)
        return by_speed(self.speeds, groups, self.job.batch)

    def facts(self) -> Facts:
        """Return the facts that seconds between updates are predicted from."""
        from omnizen.measure.device import measure_devices
        from omnizen.measure.facts import Facts, GradientFacts
        from omnizen.measure.links import measure_links

        self.lay_out()
        comm = self.trainer.comm
        links = measure_links(comm, LINKS_S)
        share = str(max(1, self.job.batch // self.size))
        devices = [
            d.model_copy(update={"samples_per_s": {share: speed}})
            for d, speed in zip(measure_devices(comm), self.speeds, strict=True)
        ]
        parameters = self.task.make_model().named_parameters()
        gradients = [GradientFacts(name=n, kind="dense", shape=tuple(p.shape)) for n, p in parameters]
        return Facts(torch_version=str(torch.__version__), world_size=self.size, devices=devices, links=links,
                     gradients=gradients)  # fmt: skip

    def settings(self) -> Settings:
        """Measure, and return what the tuner is to know."""
        from omnizen.plan.efficiency import of_layout
        from omnizen.plan.layouts import sizes

        facts = self.facts()
        groups = sizes(self.size)
        predicted = tuple(of_layout(facts, self.layout(g)).update_s for g in groups)
        self.answer.update_s = {str(g): (s, 0.0) for g, s in zip(groups, predicted, strict=True)}
        top = 2.5 * self.job.step
        return Settings(
            workers=self.size, search=self.job.search, groups=groups,  # type: ignore[arg-type]
            update_s=predicted, steps=(top, top / 10, top / 100), probe_s=self.job.probe_s,
            overhead=self.job.overhead, horizon_s=self.job.most_s, steady=False,
        )  # fmt: skip

    def until_target(self, point: Point) -> None:
        """Train with one point until the target or the end of the time."""
        weights = self.trainer.first()
        while True:
            left_s = self.job.most_s - max(self.trainer.gather(self.trainer.clock_s))
            result, weights = self.train(Train(point, max(left_s, 0.0)), weights)
            if result.stop:
                return

    def train(self, action: Probe | Train, start: Weights) -> tuple[Result, Weights]:
        """Train as an action says; the same result on all ranks."""
        training = isinstance(action, Train)
        stretch = self.trainer.stretch(
            self.trainer.way(action.point.groups),
            action.point,
            action.seconds,
            start,
            enough=lambda losses: self._enough(losses, training),
        )
        if stretch.error:
            raise UserError(stretch.error)
        result = self._result(action, stretch, training)
        self._tell(action, result)
        return result, stretch.end

    def _enough(self, losses: Sequence[float], training: bool) -> bool:
        """Return whether this rank's own losses are clearly at the target, or hopeless."""
        last = losses[-self.job.smooth :]
        if not all(v == v and v < HOPELESS for v in last):
            return True
        return training and len(last) == self.job.smooth and sum(last) / len(last) <= 0.97 * self.job.target

    def _result(self, action: Probe | Train, stretch: Stretch, training: bool) -> Result:
        answer, job = self.answer, self.job
        losses = [u.loss for u in stretch.updates]
        answer.clock_s = max(self.trainer.gather(self.trainer.clock_s))
        answer.updates += len(losses)
        answer.last_loss = losses[-1] if losses and losses[-1] == losses[-1] else None
        if training:
            window: list[float] = []
            for update in stretch.updates:
                window = [*window[-job.smooth + 1 :], update.loss]
                if len(window) == job.smooth and sum(window) / job.smooth <= job.target:
                    answer.reached_s = update.at_s
                    break
            answer.point = (action.point.groups, action.point.step, action.point.momentum)
            answer.staleness = list(stretch.staleness)
        diverged = bool(losses) and not losses[-1] < HOPELESS
        over = answer.reached_s is not None or answer.clock_s >= job.most_s or (diverged and job.fixed is not None)
        return stretch.result(stop=training and over)

    def _tell(self, action: Probe | Train, result: Result) -> None:
        groups = str(action.point.groups)
        predicted = self.answer.update_s.get(groups, (0.0, 0.0))[0]
        self.answer.update_s[groups] = (predicted, result.update_s if result.updates else 0.0)
        if self.rank == 0:
            kind = type(action).__name__.lower()
            loss = result.score(10)
            print(
                f"{self.answer.clock_s:.0f} s: {kind}, {action.point}: {result.updates} updates in "
                f"{result.seconds:.1f} s, loss {loss:.4g}",
                flush=True,
            )


if __name__ == "__main__":
    leave(main(sys.argv[1]))
