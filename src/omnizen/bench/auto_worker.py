"""One worker of ``omnizen bench auto``: trains by one method until the target. Run on every host as

``python -m omnizen.bench.auto_worker JOB.json`` with the environment that torchrun sets.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from pydantic import Field

from omnizen.bench.errand import Errand, WorkerAnswer, do_errand
from omnizen.bench.watch import leave
from omnizen.plan.tuner import Carrier, Done, Point, Probe, Result, Settings, Train, Tuner

if TYPE_CHECKING:
    from omnizen.bench.cases.case import Case
    from omnizen.measure.facts import Facts
    from omnizen.plan.layouts import Layout

Weights = dict[str, torch.Tensor]
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
        set_up_s: seconds of these between two actions.
        losses: of all updates, the last few.
        update_s: predicted and measured seconds between two updates, by number of groups.
        notes: decisions of the tuner as (phase, kind, text).
    """

    reached_s: float | None = None
    clock_s: float = 0.0
    set_up_s: float = 0.0
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
    trainer = Trainer(case, job, answer)
    dist.barrier()
    trainer.begin()
    if job.fixed is not None:
        trainer.lay_out()
        trainer.until_target(Point(*job.fixed))
    else:
        tuner = Tuner(trainer.settings())
        carrier = Carrier(tuner, trainer.train, trainer.first())
        while carrier.step() is not None:
            pass
        answer.notes = [(n.phase, n.kind, n.text) for n in tuner.notes]
        answer.overhead = tuner.overhead
        action = tuner.next()
        if isinstance(action, Done) and answer.reached_s is None:
            answer.failed = f"the target was not reached in {answer.clock_s:.0f} s: {action.reason}"
    if answer.reached_s is None and not answer.failed:
        answer.failed = f"the target was not reached in {answer.clock_s:.0f} s (loss {answer.last_loss})"


class Trainer:
    """Trains one stretch after the other, each in a run of its own from given weights."""

    def __init__(self, case: Case, job: AutoJob, answer: AutoAnswer) -> None:
        self.case, self.job, self.answer = case, job, answer
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.speeds = [1.0] * self.size
        self.step, self.stretch = 0, 0
        self.began_s = 0.0
        self.recent: list[float] = []

    def begin(self) -> None:
        """Start the clock."""
        self.began_s = time.monotonic()

    def first(self) -> Weights:
        """Return the weights to begin with."""
        model = self.case.make_model(sparse=False, seed=self.job.seed)
        return {name: value.clone() for name, value in model.state_dict().items()}

    def lay_out(self) -> None:
        """Measure each rank's speed, all at once."""
        share = max(1, self.job.batch // self.size)
        model = self.case.make_model(sparse=False, seed=self.job.seed)
        seconds = []
        for n in range(SPEED_STEPS):
            batch = self.case.batch_at(n, rank=self.rank, size=self.size, batch=share, seed=self.job.seed)
            start_s = time.monotonic()
            self.case.loss(model, batch).backward()
            seconds.append(time.monotonic() - start_s)
        self.speeds = gather(share / median(seconds[1:]))

    def layout(self, groups: int) -> Layout:
        """Return who works with whom on how much."""
        from omnizen.plan.layouts import by_speed, even

        if self.job.even:
            return even(self.size, groups, self.job.batch)
        return by_speed(self.speeds, groups, self.job.batch)

    def facts(self) -> Facts:
        """Return the facts that seconds between updates are predicted from."""
        from omnizen.comm.torch_pg import from_default
        from omnizen.measure.device import measure_devices
        from omnizen.measure.facts import Facts, GradientFacts
        from omnizen.measure.links import measure_links

        self.lay_out()
        comm = from_default(self.job.limit_s)
        links = measure_links(comm, LINKS_S)
        share = str(max(1, self.job.batch // self.size))
        devices = [
            d.model_copy(update={"samples_per_s": {share: speed}})
            for d, speed in zip(measure_devices(comm), self.speeds, strict=True)
        ]
        comm.close()
        model = self.case.make_model(sparse=False, seed=self.job.seed)
        gradients = [GradientFacts(name=n, kind="dense", shape=tuple(p.shape)) for n, p in model.named_parameters()]
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
        weights = self.first()
        while True:
            left_s = self.job.most_s - max(gather(time.monotonic() - self.began_s))
            result, weights = self.train(Train(point, max(left_s, 0.0)), weights)
            if result.stop:
                return

    def train(self, action: Probe | Train, start: Weights) -> tuple[Result, Weights]:
        """Train as an action says; the same result on all ranks."""
        training = isinstance(action, Train)
        model = self.case.make_model(sparse=False, seed=self.job.seed)
        model.load_state_dict(start)
        layout = self.layout(action.point.groups)
        taken, end, staleness, seconds = self._stretch(model, action.point, layout, action.seconds, training)
        everyone = gather((taken, staleness))
        updates = merged([each for each, _ in everyone], layout)
        result = self._result(action, updates, everyone[0][1], max(gather(seconds)), training)
        self._tell(action, result)
        return result, end

    def _stretch(
        self, model: torch.nn.Module, point: Point, layout: Layout, seconds: float, training: bool
    ) -> tuple[list[tuple[float, float]], Weights, dict[int, int], float]:
        import omnizen as oz
        from omnizen import strategies

        optimizer: Any = torch.optim.SGD(model.parameters(), lr=point.step, momentum=max(point.momentum, 0.0))
        groups = layout.groups
        plan = strategies.groups(groups, "dense") if len(groups) > 1 else strategies.sync("dense")
        share = layout.samples[self.rank]
        leads = self.rank == groups[layout.group_of(self.rank)][0]
        stop = Stop(f"auto/{self.stretch}", layout.group_of(self.rank), leads, len(groups))
        self.stretch += 1
        taken: list[tuple[float, float]] = []
        with oz.init(timeout_s=self.job.limit_s, seed=self.job.seed) as run:
            model, optimizer, _ = run.prepare(model, optimizer, plan=plan)
            run.set_hyper(lr=point.step, momentum=point.momentum)
            start_s = time.monotonic()
            while not stop.now(len(taken), time.monotonic() - start_s >= seconds or self._enough(taken, training)):
                batch = self.case.batch_at(
                    self.step, rank=self.rank, size=self.size, batch=share, seed=self.job.seed + share
                )
                self.step += 1
                run.set_batch_weight(share)
                loss = self.case.loss(model, batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                taken.append((time.monotonic() - self.began_s, float(loss.detach())))
            took_s = time.monotonic() - start_s
            staleness = run.staleness() if self.rank == 0 else {}
            run.flush()
            end = {name: value.detach().clone() for name, value in model.state_dict().items()}
        return taken, end, staleness, took_s

    def _enough(self, taken: Sequence[tuple[float, float]], training: bool) -> bool:
        """Return whether this rank's own losses are clearly at the target, or hopeless."""
        last = [loss for _, loss in taken[-self.job.smooth :]]
        if not last or not all(v == v and v < HOPELESS for v in last):
            return bool(last)
        return training and len(last) == self.job.smooth and sum(last) / len(last) <= 0.97 * self.job.target

    def _result(
        self, action: Probe | Train, updates: list[tuple[float, float]], staleness: dict[int, int],
        seconds: float, training: bool,
    ) -> Result:  # fmt: skip
        losses = tuple(loss for _, loss in updates)
        answer, job = self.answer, self.job
        answer.clock_s = max(gather(time.monotonic() - self.began_s))
        answer.updates += len(updates)
        answer.last_loss = losses[-1] if losses and losses[-1] == losses[-1] else None
        lags = max(staleness, default=-1)
        counts = tuple(staleness.get(lag, 0) for lag in range(lags + 1))
        if training:
            window: list[float] = []
            for at_s, loss in updates:
                window = [*window[-job.smooth + 1 :], loss]
                if len(window) == job.smooth and sum(window) / job.smooth <= job.target:
                    answer.reached_s = at_s
                    break
            answer.point = (action.point.groups, action.point.step, action.point.momentum)
            answer.staleness = list(counts)
        diverged = bool(losses) and not losses[-1] < HOPELESS
        over = answer.reached_s is not None or answer.clock_s >= job.most_s or (diverged and job.fixed is not None)
        return Result(seconds, len(updates), losses, counts, stop=training and over)

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


class Stop:
    """When the ranks of a group stop: at a step that its first rank names a step ahead, through the store."""

    def __init__(self, name: str, group: int, leads: bool, groups: int) -> None:
        self.store = dist.distributed_c10d._get_default_store()
        self.name, self.group, self.leads, self.groups = name, group, leads, groups
        self.at: int | None = None

    def now(self, step: int, wants: bool) -> bool:
        """Return whether this step is not to be taken."""
        key = f"{self.name}/{self.group}"
        if self.at is None and self.leads and (wants or self.store.check([f"{self.name}/all"])):
            self.at = step + 1
            self.store.set(key, str(self.at))
            self.store.set(f"{self.name}/all", "1")
        elif self.at is None and not self.leads and self.store.check([key]):
            self.at = int(self.store.get(key))
        return self.at is not None and step >= self.at


def merged(taken: Sequence[Sequence[tuple[float, float]]], layout: Layout) -> list[tuple[float, float]]:
    """Return (seconds, loss) of all groups' updates in order; a group's loss is the mean over its samples."""
    updates = []
    for group in layout.groups:
        total = sum(layout.samples[r] for r in group)
        for step in range(min(len(taken[r]) for r in group)):
            loss = sum(taken[r][step][1] * layout.samples[r] for r in group) / total
            updates.append((max(taken[r][step][0] for r in group), loss))
    return sorted(updates)


def gather(value: Any) -> list[Any]:
    """Return every rank's value on every rank."""
    out: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(out, value)
    return out


if __name__ == "__main__":
    leave(main(sys.argv[1]))
