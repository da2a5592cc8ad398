"""One worker of the synchronisation benchmark: measures the links, then times every scheme on every gradient.

Run on every host as ``python -m omnizen.bench.sync_worker JOB.json``.
"""

from __future__ import annotations

import os
import random
import sys
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field

from omnizen.bench.counters import interface_bytes
from omnizen.bench.errand import Errand, WorkerAnswer, do_errand
from omnizen.bench.grid import Point
from omnizen.bench.job import Network
from omnizen.bench.watch import leave

if TYPE_CHECKING:
    from omnizen.comm.meter import Metered

ENOUGH_S = 4.0
"""A scheme is repeated for about so long: short reductions vary more, and only many of them tell schemes apart."""
TRIAL_S = 30.0
"""What training allows for all trials of a job."""
MORE = 400
"""The most that repeats are multiplied by for that."""
FIRST, FAR, CLEAR = 25, 2.0, 1.25
"""Schemes that took more than ``FAR`` times as long as the best in their first repeat (short ones: in up to
``FIRST``), or more than ``CLEAR`` times in the median after that, need no telling apart and are not repeated."""
FIRST_S = 0.3
"""The first repeats of one scheme take about so long."""


class SyncJob(Errand):
    """Points that share their links, and what to do with each.

    Args:
        schemes: catalogue names; those that do not apply to a gradient's kind are left out for it.
        enough_s: schemes near the best are repeated for about so long each.
        trial_s: the planner's budget for trying near-ties on one gradient.
        repeats: timed reductions of each scheme, in turn with the others; one for schemes that are far from the
            best, up to ``MORE`` times as many for those near it. A scheme's first reduction of all is not timed.
    """

    points: list[Point]
    schemes: list[str]
    repeats: int = 3
    enough_s: float = ENOUGH_S
    trial_s: float = TRIAL_S
    seed: int = 0


class Timing(BaseModel):
    """What one worker measured of one scheme on one point.

    Args:
        seconds: of each timed reduction, from a barrier.
        wire_rx_bytes: received by the interface in one reduction, headers included; None without one of its own.
        payload_rx_bytes: received in one reduction, by the meter.
        predicted_s: by the planner's formula.
        predicted_rx_bytes: at the busiest worker, by the scheme's formula.
    """

    model_config = ConfigDict(extra="forbid")

    point: int
    scheme: str
    seconds: list[float] = Field(default_factory=list)
    wire_rx_bytes: float | None = None
    payload_rx_bytes: float = 0.0
    predicted_s: float = 0.0
    predicted_rx_bytes: float = 0.0
    failed: str = ""


class SyncAnswer(WorkerAnswer):
    """All timings of one worker.

    Args:
        formula_picks: for each point what the cost formulas choose.
        picks: what the planner chooses after it has tried near-ties on the links, as training does.
    """

    timings: list[Timing] = Field(default_factory=list)
    formula_picks: list[str] = Field(default_factory=list)
    picks: list[str] = Field(default_factory=list)
    bandwidth_bytes_per_s: float = 0.0
    latency_s: float = 0.0
    network: Network = Field(default_factory=Network)


def main(path: str) -> int:
    """Do a job and leave the answer in its folder; returns the exit status."""
    job = SyncJob.model_validate_json(Path(path).read_text(encoding="utf-8"))
    return do_errand(job, SyncAnswer(rank=int(os.environ["RANK"]), network=Network.from_environment()), work)


def work(job: SyncJob, answer: SyncAnswer) -> None:
    """Measure facts, let the planner choose, then time everything."""
    from omnizen import catalog
    from omnizen.comm.meter import Metered
    from omnizen.comm.torch_pg import from_default

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=job.limit_s))
    comm = Metered(from_default(timeout_s=min(120.0, job.limit_s)))
    plan(job, answer, comm)
    warm: set[tuple[str, str]] = set()
    for number, point in enumerate(job.points):
        names = [s for s in job.schemes if point.kind in catalog.REDUCERS[s].kinds]
        timings = {name: t for t in answer.timings if t.point == number for name in (t.scheme,)}
        time_point(job, point, [timings[n] for n in names], answer.picks[number], comm, answer.network.shaped, warm)
        if comm.rank == 0:
            print(f'@point {{"number": {number}}}', flush=True)
    comm.barrier()


def plan(job: SyncJob, answer: SyncAnswer, comm: Metered) -> None:
    """Measure links, devices and patterns; keep the planner's choice and predictions."""
    from omnizen import catalog
    from omnizen.bench.patterns import contribution, indices
    from omnizen.measure.device import measure_devices
    from omnizen.measure.facts import Facts
    from omnizen.measure.gradient import PatternProbe
    from omnizen.measure.links import measure_links, measure_meetings
    from omnizen.plan.cost import predict
    from omnizen.plan.links import LinkModel
    from omnizen.plan.search import make_plan, slowest_rates
    from omnizen.plan.share import share_plan
    from omnizen.plan.trial import refine

    links, meetings = measure_links(comm), measure_meetings(comm)
    devices = measure_devices(comm)
    probe = PatternProbe(comm)
    for number, point in enumerate(job.points):
        rows = torch.from_numpy(indices(point, comm.rank, job.seed))
        shape = (point.rows, point.width) if point.width > 1 else (point.rows,)
        probe.observe(f"{number:04d}", rows, point.rows, point.width, 4, shape=shape)
    facts = Facts(
        torch_version=torch.__version__, world_size=comm.size, devices=devices, links=links, meetings=meetings,
        gradients=sorted(probe.finish(), key=lambda g: g.name),
    )  # fmt: skip
    model, rates = LinkModel.of(facts.links, facts.world_size, meetings), slowest_rates(facts.devices)
    planned = share_plan(make_plan(facts, schemes=job.schemes) if comm.rank == 0 else None, comm)
    answer.formula_picks = [t.scheme for t in planned.tensors]
    for point, tensor in zip(job.points, planned.tensors, strict=True):
        alone = planned.model_copy(update={"tensors": [tensor]})
        tried = refine(alone, comm, {tensor.name: contribution(point, comm.rank, job.seed)}, budget_s=job.trial_s)
        answer.picks.append(tried.tensors[0].scheme)
    answer.bandwidth_bytes_per_s, answer.latency_s = model.spread_bytes_per_s, model.latency_s
    for number, (point, gradient) in enumerate(zip(job.points, facts.gradients, strict=True)):
        for scheme in job.schemes:
            if point.kind in catalog.REDUCERS[scheme].kinds:
                cost = predict(scheme, gradient.sparsity(), comm.size, model, rates)
                answer.timings.append(
                    Timing(
                        point=number,
                        scheme=scheme,
                        predicted_s=cost.seconds,
                        predicted_rx_bytes=cost.traffic.rx_bytes,
                    )
                )


def time_point(
    job: SyncJob,
    point: Point,
    timings: list[Timing],
    pick: str,
    comm: Metered,
    shaped: bool,
    warm: set[tuple[str, str]],
) -> None:
    """Reduce one gradient by each scheme in turn, the pick and those that turn out near the best more often.

    Args:
        warm: schemes and kinds of gradient that this process has reduced before.
    """
    from omnizen import catalog
    from omnizen.bench.patterns import contribution
    from omnizen.types import Step

    mine = contribution(point, comm.rank, job.seed)
    reducers = {t.scheme: catalog.reducer(t.scheme) for t in timings}
    states = {name: reducer.init(mine) for name, reducer in reducers.items()}
    order = random.Random(point.name)  # equal on all ranks

    def reduce(timing: Timing, repeat: int) -> float:
        name = timing.scheme
        comm.barrier()
        wire, payload = interface_bytes()[1] if shaped else 0, received(comm)
        start_s = time.monotonic()
        reduced = reducers[name].start(mine, states[name], comm, Step(repeat, name=point.name)).wait()
        seconds = time.monotonic() - start_s
        states[name] = reduced.state
        timing.payload_rx_bytes = received(comm) - payload
        if shaped:
            timing.wire_rx_bytes = float(interface_bytes()[1] - wire)
        return seconds

    def take_turns(taking: list[Timing], times: int) -> None:
        for _ in range(times):
            for timing in order.sample(taking, len(taking)):  # nobody always follows the same other
                if (timing.scheme, point.kind) not in warm:
                    reduce(timing, 0)
                    warm.add((timing.scheme, point.kind))
                timing.seconds.append(reduce(timing, len(timing.seconds) + 1))

    take_turns(timings, 1)
    first = max(1, min(FIRST, round(FIRST_S / near_the_best(timings, comm, FAR)[1])))
    take_turns(timings, first - 1)
    near, _ = near_the_best(timings, comm, FAR, pick)
    take_turns(near, job.repeats - first)
    nearest, best_s = near_the_best(near, comm, CLEAR, pick)
    take_turns(nearest, enough(job.repeats, best_s, job.enough_s) - max(first, job.repeats))


def enough(repeats: int, best_s: float, enough_s: float = ENOUGH_S) -> int:
    """Return how often the schemes nearest the best are timed: more often where reductions are short."""
    return max(repeats, min(MORE * repeats, round(enough_s / best_s)))


def near_the_best(timings: list[Timing], comm: Metered, times: float, pick: str = "") -> tuple[list[Timing], float]:
    """Return the schemes within so many times the best median and the pick, on all ranks alike; and that median."""
    medians = torch.tensor([median(t.seconds) for t in timings], dtype=torch.float64)
    slowest = torch.stack([parts[0] for parts in comm.all_gather([medians]).wait()]).amax(0)
    best_s = float(slowest.min())
    near = [t for t, s in zip(timings, slowest.tolist(), strict=True) if s <= times * best_s or t.scheme == pick]
    return near, max(best_s, 1e-3)


def received(comm: Metered) -> float:
    """Return the payload bytes that this rank has received."""
    return comm.reading().rx_bytes


if __name__ == "__main__":
    leave(main(sys.argv[1]))
