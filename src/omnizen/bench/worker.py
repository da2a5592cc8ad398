"""One worker of a benchmark: one method on one case, timed step by step. Run on every host as

``python -m omnizen.bench.worker JOB.json`` with the environment that torchrun sets.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from omnizen.bench.counters import counter
from omnizen.bench.job import Answer, Job, Network
from omnizen.bench.methods import Plain, Wrapped, method
from omnizen.bench.watch import leave, watch
from omnizen.errors import OmnizenError

if TYPE_CHECKING:
    from omnizen.bench.cases.case import Batch, Case
    from omnizen.bench.record import Recording
    from omnizen.plan.plan import Plan

MOST_WARMUP_STEPS = 100
COMPUTE_STEPS = 3


def main(path: str) -> int:
    """Do a job and leave the answer in its folder; returns the exit status."""
    job = Job.model_validate_json(Path(path).read_text(encoding="utf-8"))
    answer = Answer(
        rank=int(os.environ["RANK"]), size=int(os.environ["WORLD_SIZE"]), method=job.method,
        network=Network.from_environment(),
    )  # fmt: skip
    watch(job.limit_s, lambda reason: late(reason, answer).save(job.out))
    try:
        work(job, answer)
    except Exception as error:  # whatever a method raises becomes its failed row
        answer.failed = str(error) if isinstance(error, OmnizenError) else f"{type(error).__name__}: {error}"
        traceback.print_exc()
    answer.save(job.out)
    return 1 if answer.failed else 0


def work(job: Job, answer: Answer) -> None:
    """Train, and fill the answer in as it comes."""
    from omnizen.bench.cases import make_case
    from omnizen.bench.record import Recording

    torch.set_num_threads(1)
    row = method(job.method)
    doing(answer, "reading the data, making the model")
    case = make_case(job.case, **job.case_options)
    model = case.make_model(sparse=row.sparse, seed=job.seed)
    optimizer = case.make_optimizer(model)
    answer.items_per_step = case.units_per_batch(job.batch)
    if not job.method.startswith("omnizen"):  # which makes its groups and measures by itself
        doing(answer, "waiting for all workers, timing the model without communication")
        dist.init_process_group("gloo", timeout=timedelta(seconds=job.limit_s))
        answer.compute_s = compute_seconds(case, model, job, answer)
        params = sum(p.numel() * p.element_size() for p in model.parameters())
        doing(answer, f"setting up: the model's {params / 1e6:.0f} MB go to all workers")
    else:
        doing(answer, "waiting for all workers, comparing models, measuring devices and links")
    started = time.monotonic()
    batches = case.batches(rank=answer.rank, size=answer.size, batch=job.batch, seed=job.seed)
    wrapped = row.wrap(Plain(model, optimizer, batches, job, answer.network, case.reads))
    answer.setup_s = time.monotonic() - started
    recording = Recording.start(job, answer, model, wrapped)
    read, answer.bytes_source = counter(answer.network.shaped, wrapped.counted)
    take = Loop(case, batches, wrapped, job, answer, recording)
    doing(answer, "first step")
    take.warm_up()
    planned = agree("timed steps", take.timed_steps())
    if answer.rank == 0:
        tell("planned", steps=answer.warmup_steps + planned)
    dist.barrier()
    sent, received = read()
    for _ in range(planned):
        answer.step_s.append(take.step())
    now_sent, now_received = read()
    answer.tx_bytes_per_step = (now_sent - sent) / planned
    answer.rx_bytes_per_step = (now_received - received) / planned
    if wrapped.run is not None and wrapped.run.plan is not None:
        told_by(wrapped.run.plan, answer)
    dist.barrier()
    recording.end()
    wrapped.close()
    if wrapped.run is not None and not answer.network.shaped:
        by_its_events(job, answer)


def late(reason: str, answer: Answer) -> Answer:
    """Return the answer of a worker whose limit passed."""
    return answer.model_copy(update={"failed": f"{reason}; {len(answer.losses)} steps were done"})


class Loop:
    """The training loop, one step at a time; the same for every method."""

    def __init__(
        self, case: Case, batches: Iterator[Batch], wrapped: Wrapped, job: Job, answer: Answer, recording: Recording
    ) -> None:
        self.case, self.wrapped, self.job, self.answer = case, wrapped, job, answer
        self.recording = recording
        self.batches = iter(batches if wrapped.batches is None else wrapped.batches)
        self.last_s = 0.0

    def step(self) -> float:
        """Take one step; returns its seconds."""
        n = len(self.answer.losses)
        before = self.recording.before()
        start_s = time.monotonic()
        self.wrapped.begin()
        loss = self.case.loss(self.wrapped.model, next(self.batches))
        loss.backward()
        self.wrapped.optimizer.step()
        self.wrapped.optimizer.zero_grad()
        value = float(loss.detach())
        self.last_s = time.monotonic() - start_s
        self.answer.losses.append(value)
        self.wrapped.log(value)
        self.recording.step(n, start_s, self.last_s, value, before)
        if self.answer.rank == 0:
            tell("step", step=n, loss=value, step_s=self.last_s)
        return self.last_s

    def warm_up(self) -> None:
        """Take the steps that are not timed: at least the job's, and a few after the method has settled."""
        since = 0
        while len(self.answer.losses) < self.job.warmup_steps or since < self.wrapped.steps_after_settling:
            if len(self.answer.losses) >= MOST_WARMUP_STEPS:
                raise RuntimeError(f"no plan is in force after {MOST_WARMUP_STEPS} steps")
            settled = self.wrapped.settled()
            since += settled
            if self.plans_now():
                doing(self.answer, "one more step, and then the plan (measuring links and trying schemes)")
            self.step()
            if self.answer.rank == 0 and self.wrapped.run is not None and self.wrapped.settled() and not settled:
                tell("plan", step=len(self.answer.losses))
        self.answer.warmup_steps = len(self.answer.losses)

    def plans_now(self) -> bool:
        """Whether the coming step is the last that Omnizen watches: making the plan counts as a part of it."""
        from omnizen.train.auto import WATCHED_STEPS

        waits = self.wrapped.run is not None and not self.wrapped.settled()
        return waits and len(self.answer.losses) == WATCHED_STEPS - 1

    def timed_steps(self) -> int:
        """Return how many timed steps fit the budget, from the last warm-up step's time."""
        fitting = int(self.job.budget_s / max(self.last_s, 1e-6))
        return min(self.job.steps, max(self.job.min_steps, fitting))


def compute_seconds(case: Case, model: torch.nn.Module, job: Job, answer: Answer) -> float:
    """Return the seconds of forward and backward without communication, while all ranks do the same."""
    from copy import deepcopy

    alone = deepcopy(model)
    samples = []
    with torch.random.fork_rng():
        dist.barrier()
        for n in range(COMPUTE_STEPS):
            start_s = time.monotonic()
            batch = case.batch_at(n, rank=answer.rank, size=answer.size, batch=job.batch, seed=job.seed)
            case.loss(alone, batch).backward()
            samples.append(time.monotonic() - start_s)
            alone.zero_grad()
        dist.barrier()
    return min(samples[1:])


def agree(what: str, value: int) -> int:
    """Return rank 0's value on every rank, through the store and not over the measured collectives."""
    store = dist.distributed_c10d._get_default_store()
    key = f"bench/{what}"
    if dist.get_rank() == 0:
        store.set(key, str(value))
    return int(store.get(key))


def by_its_events(job: Job, answer: Answer) -> None:
    """Take the bytes of the timed steps from the events that Omnizen's meter filled."""
    from omnizen.events import StepEvent, events_path, read_events

    steps = [e for e in read_events(events_path(job.run_dir, answer.rank)).events if isinstance(e, StepEvent)]
    timed = [e for e in steps if e.step >= answer.warmup_steps]
    answer.tx_bytes_per_step = sum(e.tx_bytes for e in timed) / len(timed)
    answer.rx_bytes_per_step = sum(e.rx_bytes for e in timed) / len(timed)
    answer.bytes_source = "meter"


def told_by(plan: Plan, answer: Answer) -> None:
    """Take the prediction and the schemes from Omnizen's plan."""
    answer.predicted_step_s = plan.prediction.step_s
    answer.compute_s = plan.prediction.compute_s
    answer.schemes = {t.name: t.scheme for t in plan.tensors}


def doing(answer: Answer, text: str) -> None:
    """Say on rank 0 what is going on before there are steps to follow."""
    if answer.rank == 0:
        tell("doing", text=text)


def tell(kind: str, **what: Any) -> None:
    """Print one line for whoever started this worker to follow."""
    print(f"@{kind} {json.dumps(what)}", flush=True)


if __name__ == "__main__":
    leave(main(sys.argv[1]))
