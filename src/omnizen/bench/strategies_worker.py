"""One worker of ``omnizen bench strategies``: measures facts, then trains every strategy. Run on every host as

``python -m omnizen.bench.strategies_worker JOB.json`` with the environment that torchrun sets.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from pydantic import BaseModel, Field

from omnizen.bench.errand import Errand, WorkerAnswer, do_errand
from omnizen.bench.job import Network
from omnizen.bench.strategies_trial import candidates, measure, train
from omnizen.bench.watch import leave
from omnizen.protocols import Comm

if TYPE_CHECKING:
    from omnizen.bench.cases.case import Case


class StrategiesJob(Errand):
    """What every worker is told.

    Args:
        batches: samples of a worker and step where shares are even; each makes a configuration of its own.
        kinds: of strategies: sync, groups, local.
        rounds: how often each strategy is trained, in turn with the others.
        seconds: for which it is trained in a round.
        rate_s: for which each rank's rate is measured at each size.
        enough_s: rounds after the first end here.
    """

    case: str
    batches: list[int]
    kinds: list[str]
    rounds: int
    seconds: float
    rate_s: float
    enough_s: float
    seed: int


class Found(BaseModel):
    """One configuration.

    Args:
        facts: as TOML.
        update_s: by strategy in the planner's order, and by round: seconds an update.
        samples_per_s: likewise, of all workers.
    """

    batch: int
    facts: str
    update_s: list[list[float]] = Field(default_factory=list)
    samples_per_s: list[list[float]] = Field(default_factory=list)


class StrategiesAnswer(WorkerAnswer):
    """What one worker measured; the numbers are those of all, rank 0's are taken."""

    found: list[Found] = Field(default_factory=list)
    network: Network = Field(default_factory=Network)


def explore(
    job: StrategiesJob, case: Case, comm: Comm, answer: StrategiesAnswer, say: Callable[[str], None]
) -> None:
    """Measure, then train all strategies, for each batch (collective)."""
    began_s = _clock(comm)
    for batch in job.batches:
        facts = measure(case, comm, batch, rate_s=job.rate_s, name=f"facts {batch}", seed=job.seed)
        all_of_them, longest_s = candidates(facts, job.kinds), 0.0
        found = Found(batch=batch, facts=facts.to_toml())
        found.update_s = [[] for _ in all_of_them]
        found.samples_per_s = [[] for _ in all_of_them]
        answer.found.append(found)
        for again in range(job.rounds):
            for number, candidate in enumerate(all_of_them):
                before_s = _clock(comm)
                if again and before_s - began_s + 1.5 * longest_s > job.enough_s:
                    break
                name = f"{batch} {again} {number}"
                one, rate = train(case, comm, candidate, seconds=job.seconds, name=name, seed=job.seed)
                found.update_s[number].append(one)
                found.samples_per_s[number].append(rate)
                longest_s = max(longest_s, _clock(comm) - before_s)
                say(
                    f"batch {batch}, round {again}, {candidate.strategy} {len(candidate.groups)} "
                    f"{candidate.samples} {candidate.local_steps}: {one:.3f} s, expected {candidate.update_s:.3f} s"
                )


def _clock(comm: Comm) -> float:
    """Return rank 0's clock, so that all ranks stop at the same place (collective)."""
    now = torch.tensor([time.monotonic()], dtype=torch.float64)
    return float(comm.all_gather([now]).wait()[0][0])


def work(job: StrategiesJob, answer: StrategiesAnswer) -> None:
    """Join the others and explore."""
    from omnizen.bench.cases import make_case
    from omnizen.comm.torch_pg import from_default

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=job.limit_s))
    comm = from_default(timeout_s=min(120.0, job.limit_s))
    explore(
        job, make_case(job.case), comm, answer, lambda text: print(text, flush=True) if answer.rank == 0 else None
    )


def main(path: str) -> int:
    """Do a job and leave the answer in its folder; returns the exit status."""
    job = StrategiesJob.model_validate_json(Path(path).read_text(encoding="utf-8"))
    return do_errand(job, StrategiesAnswer(rank=int(os.environ["RANK"]), network=Network.from_environment()), work)


if __name__ == "__main__":
    leave(main(sys.argv[1]))
