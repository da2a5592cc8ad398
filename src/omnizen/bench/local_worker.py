"""One worker of the benchmark of local steps: trains by each method from each seed, tested between rounds.

Run on every host as ``python -m omnizen.bench.local_worker JOB.json``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import BaseModel, Field
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from omnizen.bench.curves.tasks import Task, load_task
from omnizen.bench.errand import Errand, WorkerAnswer, do_errand
from omnizen.bench.job import Network
from omnizen.bench.watch import leave
from omnizen.errors import UserError, nearest
from omnizen.strategies import Strategy, local_sgd
from omnizen.train.local import LocalSteps
from omnizen.train.run import Run

METHODS = ("sync", "fast-only", "local-equal", "local-speed", "local-biased")
"""Every gradient averaged; the same without the slow hosts; local steps: as many on all, by speed, hard samples."""


class LocalJob(Errand):
    """What to train, and how long.

    Args:
        cpu: speed of each host's processor; those at the largest are the fast ones.
        samples: of the task's training samples.
        steps: local steps of the fastest host in a round.
        seconds, epochs: the two budgets; a run ends when it has used up both, or at ``cap_s``.
        test_every_s: about so often the model is tested; tests are not timed.
    """

    case: str
    methods: list[str]
    cpu: list[float]
    seeds: int
    samples: int
    batch: int
    lr: float
    momentum: float = 0.9
    steps: int
    pool: float
    seconds: float
    epochs: float
    cap_s: float
    test_every_s: float = 0.25

    def strategy(self, method: str) -> Strategy | str:
        """Return what ``run.prepare`` is given."""
        made: dict[str, Strategy | str] = {
            "sync": "dense",
            "fast-only": "dense",
            "local-equal": local_sgd(self.steps),
            "local-speed": local_sgd("speed", most=self.steps),
            "local-biased": local_sgd("speed", most=self.steps, pool=self.pool),
        }
        if method not in made:
            raise UserError(f"method: {nearest(method, METHODS)}")
        return made[method]

    def members(self, method: str) -> list[int]:
        """Return the ranks that take part."""
        fastest = max(self.cpu)
        return [r for r, speed in enumerate(self.cpu) if method != "fast-only" or speed == fastest]


class Reading(BaseModel):
    """What a test found.

    Args:
        seconds: trained so far.
        samples: read by all ranks so far.
    """

    seconds: float
    samples: float
    accuracy: float
    loss: float


class Trained(BaseModel):
    """One run: its tests and, for local steps by speed, each rank's last number of steps."""

    method: str
    seed: int
    tests: list[Reading] = Field(default_factory=list)
    counts: list[int] = Field(default_factory=list)


class LocalAnswer(WorkerAnswer):
    """All runs of one worker; tests are those of rank 0."""

    runs: list[Trained] = Field(default_factory=list)
    network: Network = Field(default_factory=Network)


class Rows(Dataset[Any]):
    """The first samples of a task, a batch at a time."""

    def __init__(self, task: Task, samples: int) -> None:
        self.inputs, self.targets = task.inputs[:samples], task.targets[:samples]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.inputs[place], self.targets[place]

    def __getitems__(self, places: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a whole batch."""
        rows = torch.tensor(places)
        return self.inputs[rows], self.targets[rows]


def as_it_is(batch: Any) -> Any:
    """Collate nothing: batches come whole."""
    return batch


def train(job: LocalJob, method: str, seed: int, task: Task, run: Run) -> Trained:
    """Train by one method until the budgets are used up; all ranks stop at the same place."""
    done = Trained(method=method, seed=seed)
    model = task.model(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr, momentum=job.momentum)
    rows: DataLoader[Any] = DataLoader(
        Rows(task, job.samples), batch_size=job.batch, shuffle=True, drop_last=True, collate_fn=as_it_is
    )
    _, _, loader = run.prepare(model, optimizer, rows, plan=job.strategy(method))
    driver = run.driver
    local = isinstance(driver, LocalSteps)
    seconds, begun, samples, last, next_test = 0.0, time.monotonic(), 0, 0, 1
    while True:
        for inputs, targets in loader:
            place = driver.rounds if isinstance(driver, LocalSteps) else run.step
            if place >= next_test and place != last:  # weights are equal on all ranks now
                seconds += time.monotonic() - begun
                ahead = _test(job, task, run, done, seconds, samples, place)
                if not ahead:
                    done.counts = list(driver.counts.now) if isinstance(driver, LocalSteps) else []
                    return done
                last, next_test, begun = place, place + ahead, time.monotonic()
            losses = cross_entropy(model(inputs), targets, reduction="none")
            if local:
                run.note_losses(losses)
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            samples += len(targets)


def _test(job: LocalJob, task: Task, run: Run, done: Trained, seconds: float, samples: int, place: int) -> int:
    """Test on rank 0 and agree on the steps or rounds until the next test; 0 ends the run."""
    loss, accuracy = task.tested(run.model) if run.rank == 0 else (0.0, 0.0)
    a_place = seconds / place
    ahead = max(1, round(job.test_every_s / a_place))

    def tell() -> list[list[float]]:
        row = torch.tensor([seconds, float(samples), float(ahead)], dtype=torch.float64)
        if run.size == 1:
            return [row.tolist()]
        return [parts[0].tolist() for parts in run.control.all_gather([row]).wait()]

    ranks = run.engine.call(tell)
    total, seconds = sum(row[1] for row in ranks), ranks[0][0]
    done.tests.append(Reading(seconds=seconds, samples=total, accuracy=accuracy, loss=loss))
    used_up = seconds >= job.seconds and total >= job.epochs * job.samples
    return 0 if used_up or seconds >= job.cap_s else int(ranks[0][2])


def work(job: LocalJob, answer: LocalAnswer) -> None:
    """Train by every method from every seed, in turn."""
    from omnizen.comm.torch_pg import from_default

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=job.limit_s))
    comm = from_default(timeout_s=min(120.0, job.limit_s))
    task = load_task(job.case)
    for seed in range(job.seeds):
        for method in job.methods:
            members = job.members(method)
            gradients = comm.sub(members, f"{method}-{seed}")
            control = comm.sub(members, f"{method}-{seed}-control")
            if gradients is not None and control is not None:
                with Run(gradients, control, seed=seed) as run:
                    answer.runs.append(train(job, method, seed, task, run))
            comm.barrier()
            if comm.rank == 0:
                print(f"{method}, seed {seed}: accuracy {answer.runs[-1].tests[-1].accuracy:.3f}", flush=True)


def main(path: str) -> int:
    """Do a job and leave the answer in its folder; returns the exit status."""
    job = LocalJob.model_validate_json(Path(path).read_text(encoding="utf-8"))
    return do_errand(job, LocalAnswer(rank=int(os.environ["RANK"]), network=Network.from_environment()), work)


if __name__ == "__main__":
    leave(main(sys.argv[1]))
