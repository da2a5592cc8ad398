"""What ``omnizen bench strategies`` measures: the facts as training finds them, and strategies as they train.

Everything takes a comm, so that threads of one process do as well as hosts of the lab.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from omnizen import strategies
from omnizen.bench.rows import quantile
from omnizen.errors import UserError
from omnizen.measure.crowd import measure_crowd
from omnizen.measure.facts import Facts, StepFacts
from omnizen.measure.texts import gather_texts
from omnizen.plan.executions import Candidate, enumerate_candidates
from omnizen.protocols import Comm
from omnizen.train.auto import WATCHED_STEPS
from omnizen.train.run import Run

if TYPE_CHECKING:
    from omnizen.bench.cases.case import Case

SIZES = (0.5, 1.0, 1.5)
"""Of an even share, the batch sizes at which rates are measured: uneven shares lie between them."""
WARM = {"sync": 2, "groups": 2, "local": 1}
"""First updates of a trial, which tell how long one takes."""
ALONE_STEPS = 10**6
"""Local steps of a round that is not meant to end."""
GENTLE = 0.1
"""Of the case's step size, so that no strategy diverges."""


@contextmanager
def a_run(comm: Comm, name: str, seed: int) -> Iterator[Run]:
    """Make a run of all ranks with groups of its own (collective)."""
    everyone = range(comm.size)
    gradients, control = comm.sub(everyone, f"{name} gradients"), comm.sub(everyone, f"{name} control")
    assert gradients is not None
    assert control is not None
    with Run(gradients, control, seed=seed) as run:
        yield run


class Stepper:
    """Takes steps of the case's own loop on this rank.

    Args:
        share: samples of each step.
    """

    def __init__(self, case: Case, comm: Comm, share: int, seed: int) -> None:
        self.case, self.comm, self.share, self.seed = case, comm, share, seed
        self.model = case.make_model(sparse=True, seed=seed)
        self.optimizer: Any = case.make_optimizer(self.model)
        for group in self.optimizer.param_groups:
            group["lr"] *= GENTLE
        self.taken = 0

    def step(self, run: Run | None = None) -> None:
        """Take the next one."""
        rank, size = self.comm.rank, self.comm.size
        batch = self.case.batch_at(self.taken, rank=rank, size=size, batch=self.share, seed=self.seed)
        self.taken += 1
        if run is not None:
            run.set_batch_weight(self.share)
        self.case.loss(self.model, batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure(case: Case, comm: Comm, batch: int, *, rate_s: float, name: str, seed: int) -> Facts:
    """Measure as training by ``plan="auto"`` does, and each rank's rate at some sizes (collective).

    Args:
        batch: samples of a rank and step where shares are even.
        rate_s: seconds for each size, all ranks at work at once.
    """
    with a_run(comm, name, seed) as run:
        work = Stepper(case, comm, batch, seed)
        run.prepare(work.model, work.optimizer, plan="auto")
        for _ in range(WATCHED_STEPS):
            work.step(run)
        facts = run.facts
        run.flush()
    if facts is None or facts.step is None:
        raise UserError("training measured no facts")
    sizes = sorted({max(1, round(share * batch)) for share in SIZES})
    found = {n: _rate(case, comm, n, rate_s, f"{name} rate {n}", seed) for n in sizes}
    asking = comm.sub(range(comm.size), f"{name} crowd")
    assert asking is not None
    crowd = measure_crowd(asking, max(1, sum(g.nbytes for g in facts.gradients) // comm.size))
    everyone = _everyone(comm, [found[size] for size in sizes])
    devices = []
    for device in facts.devices:
        known = dict(zip(map(str, sizes), everyone[device.rank], strict=True))
        rates = {size: int(size) / seconds for size, (seconds, _) in known.items()}
        spreads = {size: spread for size, (_, spread) in known.items()}
        devices.append(device.model_copy(update={"samples_per_s": rates, "samples_per_s_spread": spreads}))
    step = StepFacts(compute_s=facts.step.compute_s, backward_s=facts.step.backward_s, samples=batch)
    facts = facts.model_copy(update={"devices": devices, "step": step, "crowd": crowd})
    return Facts.from_toml(gather_texts(comm, facts.to_toml())[0])


def _rate(case: Case, comm: Comm, size: int, rate_s: float, name: str, seed: int) -> tuple[float, float]:
    """Return the mean seconds of a step, and (80th - 20th percentile) / median of them.

    Steps of a run that exchanges nothing meanwhile: what training adds to the user's own loop is in them.
    """
    work, taken = Stepper(case, comm, size, seed), list[float]()
    with a_run(comm, name, seed) as run:
        run.prepare(work.model, work.optimizer, plan=strategies.local_sgd(ALONE_STEPS))
        work.step(run)
        comm.barrier()
        began = time.monotonic()
        while len(taken) < 3 or time.monotonic() - began < rate_s:
            before = time.monotonic()
            work.step(run)
            taken.append(time.monotonic() - before)
    spread = (quantile(taken, 0.8) - quantile(taken, 0.2)) / max(quantile(taken, 0.5), 1e-9)
    return sum(taken) / len(taken), spread


def candidates(facts: Facts, kinds: Iterable[str]) -> list[Candidate]:
    """Return the strategies of some kinds that the planner weighs, always the same of the same facts."""
    wanted = set(kinds)
    found = enumerate_candidates(facts, schemes=None, lazy=(), compressions=())
    return [candidate for candidate in found if candidate.strategy in wanted]


def asked(candidate: Candidate) -> Any:
    """Return what ``run.prepare`` is given so that it trains a candidate."""
    if candidate.strategy == "sync":
        return candidate.plan
    if candidate.strategy == "local":
        return strategies.local_sgd(list(candidate.local_steps))
    table = next((t.scheme for t in candidate.plan.tensors if t.kind != "dense"), "dense")
    return strategies.groups(candidate.groups, table)


def train(
    case: Case, comm: Comm, candidate: Candidate, *, seconds: float, name: str, seed: int
) -> tuple[float, float]:
    """Train a candidate for about so many seconds; returns seconds an update, and samples a second (collective).

    The first updates tell how many fit. All ranks then meet, and what counts is the time in which all groups are at
    work: from the last of their first updates to the first of their last ones.
    """
    group = next(g for g in candidate.groups if comm.rank in g)
    steps = _steps(candidate, comm.rank)
    with a_run(comm, name, seed) as run:
        work = Stepper(case, comm, candidate.samples[comm.rank], seed)
        run.prepare(work.model, work.optimizer, plan=asked(candidate))

        def update() -> float:
            for _ in range(steps):
                work.step(run)
            return time.monotonic()

        ends = [time.monotonic(), *(update() for _ in range(WARM[candidate.strategy]))]
        slowest = max(row[0] for row in _everyone(comm, [ends[-1] - ends[-2]], group))
        ends = [update() for _ in range(2 + math.ceil(seconds / slowest))]
        everyone = _everyone(comm, ends)
        run.flush()
    comm.barrier()
    rates = counted(candidate.groups, everyone)
    per_update = [sum(candidate.samples[r] * _steps(candidate, r) for r in g) for g in candidate.groups]
    return 1 / sum(rates), sum(rate * n for rate, n in zip(rates, per_update, strict=True))


def _steps(candidate: Candidate, rank: int) -> int:
    return candidate.local_steps[rank] if candidate.strategy == "local" else 1


def _everyone(comm: Comm, mine: Sequence[Any], ranks: Sequence[int] | None = None) -> list[list[Any]]:
    """Give every rank's numbers, or rows of them, to every rank; returns those of some ranks, or of all."""
    parts = [part.tolist() for (part,) in comm.all_gather([torch.tensor(mine, dtype=torch.float64)]).wait()]
    return parts if ranks is None else [parts[rank] for rank in ranks]


def counted(groups: Sequence[Sequence[int]], ends: Sequence[Sequence[float]]) -> list[float]:
    """Return each group's updates a second while all groups were at work.

    Args:
        ends: by rank, when each of its updates was done; a group's is done when its last member's is.

    Example:
        >>> counted([(0,), (1,)], [[0.0, 1.0, 2.0, 3.0], [1.0, 3.0]])
        [1.0, 0.5]
    """
    done = [[max(at) for at in zip(*(ends[rank] for rank in group), strict=True)] for group in groups]
    first, last = max(at[0] for at in done), min(at[-1] for at in done)
    if last <= first:
        raise UserError("some group had ended before another one had begun; train for more seconds")
    return [(_place(at, last) - _place(at, first)) / (last - first) for at in done]


def _place(at: Sequence[float], when: float) -> float:
    """Return how many updates were done at a time, the one under way in proportion."""
    number = next(i for i, end in enumerate(at) if end >= when)
    if number == 0 or at[number] == when:
        return float(number)
    return number - (at[number] - when) / (at[number] - at[number - 1])
