"""One worker of ``omnizen bench balance``: by itself, with even and with balanced batches. Run on every host as

``python -m omnizen.bench.balance_worker JOB.json`` with the environment that torchrun sets.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field

from omnizen.bench.errand import Errand, WorkerAnswer, do_errand
from omnizen.bench.watch import leave
from omnizen.plan.batch_control import BatchLaw

if TYPE_CHECKING:
    from omnizen.bench.cases.case import Batch, Case

METHODS = ("even", "balanced", "balanced-from-even", "paper-from-even")
"""Even batches; "auto" from its open-loop start; from even batches; the paper's law from even batches."""
LAWS: dict[str, BatchLaw | None] = {
    "even": None,
    "balanced": BatchLaw(),
    "balanced-from-even": BatchLaw(start="even"),
    "paper-from-even": BatchLaw(start="even", law="proportional"),
}
PLANS = {"cnn": "dense", "lm": "lazy"}
"""What synchronises: the schemes that the planner picks for these cases on fast links."""


class BalanceJob(Errand):
    """What every worker is told.

    Args:
        batch: samples of a worker and step where batches are even.
        alone_s: seconds for which each worker trains by itself, one after the other and then all at once.
        steps: of each method; ``even`` takes a quarter.
        pin: keep each worker's threads on one core, so that none of them holds a part of the quota on another.
        settle_steps: first steps of a method, which do not count.
    """

    case: str
    batch: int
    methods: tuple[str, ...]
    alone_s: float
    steps: int
    settle_steps: int
    pin: bool = False
    seed: int


class Trained(BaseModel):
    """What one method did on this rank.

    Args:
        step_s: seconds of each step.
        samples: of all ranks in each step.
        adjusted: steps after which sizes changed.
        sizes: batch sizes by rank at the end.
        first_sizes: at the start.
    """

    model_config = ConfigDict(extra="forbid")

    step_s: list[float] = Field(default_factory=list)
    samples: list[int] = Field(default_factory=list)
    adjusted: list[int] = Field(default_factory=list)
    sizes: tuple[int, ...] = ()
    first_sizes: tuple[int, ...] = ()


class BalanceAnswer(WorkerAnswer):
    """What one worker measured.

    Args:
        alone_s: seconds of each step that it took by itself, while the others waited.
        beside_s: the same while the others did so too, which on shared cores takes longer.
    """

    alone_s: list[float] = Field(default_factory=list)
    beside_s: list[float] = Field(default_factory=list)
    trained: dict[str, Trained] = Field(default_factory=dict)


def main(path: str) -> int:
    """Do a job and leave the answer in its folder; returns the exit status."""
    job = BalanceJob.model_validate_json(Path(path).read_text(encoding="utf-8"))
    return do_errand(job, BalanceAnswer(rank=int(os.environ["RANK"])), work)


def work(job: BalanceJob, answer: BalanceAnswer) -> None:
    """Train by itself in turn, then all beside each other, then together by each method."""
    from omnizen.bench.cases import make_case

    torch.set_num_threads(1)
    if job.pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, [cores[answer.rank % len(cores)]])
    dist.init_process_group("gloo", timeout=timedelta(seconds=job.limit_s))
    case = make_case(job.case)
    for rank in range(dist.get_world_size()):
        dist.barrier()
        if rank == answer.rank:
            answer.alone_s = alone(case, job)
    dist.barrier()
    answer.beside_s = alone(case, job)
    for name in job.methods:
        dist.barrier()
        answer.trained[name] = together(case, job, name)


def alone(case: Case, job: BalanceJob) -> list[float]:
    """Return the seconds of each step of this worker by itself, the first one left out."""
    from omnizen.bench.dealt import loader

    model = case.make_model(sparse=True, seed=job.seed)
    optimizer = case.make_optimizer(model)
    torch.manual_seed(job.seed)
    batches = iter(loader(case, job.batch))
    seconds: list[float] = []
    end_s = time.monotonic() + job.alone_s
    while len(seconds) < 4 or time.monotonic() < end_s:
        began_s = time.monotonic()
        case.loss(model, next(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.monotonic() - began_s)
    return seconds[1:]


def together(case: Case, job: BalanceJob, name: str) -> Trained:
    """Train with all ranks by one method."""
    import omnizen as oz
    from omnizen.bench.dealt import loader

    model = case.make_model(sparse=True, seed=job.seed)
    optimizer: Any = case.make_optimizer(model)
    plan = PLANS[job.case]
    reads = case.reads if plan == "lazy" else None
    steps = job.steps if name != "even" else max(job.settle_steps + 3, job.steps // 4)
    done = Trained()
    with oz.init(timeout_s=job.limit_s, seed=job.seed) as run:
        dealt = loader(case, job.batch)
        model, optimizer, dealt = run.prepare(model, optimizer, dealt, plan=plan, reads=reads, balance=LAWS[name])
        done.first_sizes = run.batch_sizes
        batches = endless(dealt)
        for step in range(steps):
            before = run.balance.control.adjustments if run.balance is not None else 0
            began_s = time.monotonic()
            case.loss(model, next(batches)).backward()
            optimizer.step()
            optimizer.zero_grad()
            done.step_s.append(time.monotonic() - began_s)
            done.samples.append(dealt.sampler.steps[dealt.position - 1])
            if run.balance is not None and run.balance.control.adjustments > before:
                done.adjusted.append(step)
            if run.rank == 0:
                print(f"{name} step {step} {done.step_s[-1]:.2f} s {list(run.batch_sizes)}", flush=True)
        run.flush()
        done.sizes = run.batch_sizes
    return done


def endless(batches: Any) -> Iterator[Batch]:
    """Yield batches pass after pass."""
    while True:
        yield from batches


if __name__ == "__main__":
    leave(main(sys.argv[1]))
