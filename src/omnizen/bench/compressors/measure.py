"""What one reduction of a model's real gradients takes of a processor, part by part, and what it moves."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from torch import Tensor, nn

from omnizen import spans
from omnizen.bench.compressors.turns import Desk, InTurns
from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.measure.subject import Subject
from omnizen.protocols import Comm
from omnizen.train.router import BUCKET_BYTES, Routing, build, by_scheme, tables
from omnizen.train.units import Unit
from omnizen.types import Step, Traffic

PARTS = ("select", "encode", "decode", "memory")
"""Parts of a reduction at the processor; ``memory`` is what no span names: feedback, sums, copies."""
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class UnitParts:
    """One bucket, or the rows of one table, in one reduction.

    Args:
        nbytes: of the whole gradient.
        late: a table, whose gradient is there when backward ends.
        seconds: by part, of one rank on one core; mean over ranks.
        traffic: at the busiest rank, by the meter.
    """

    name: str
    nbytes: int
    late: bool
    seconds: dict[str, float]
    traffic: Traffic

    @property
    def cpu_s(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class Gradients:
    """A model's gradients on each rank, and how long it took to get them.

    Args:
        models: one a rank, each with its own gradients.
        forward_s: of one rank's batch on one core.
        backward_s: the same.
    """

    models: list[nn.Module]
    forward_s: float
    backward_s: float

    @property
    def size(self) -> int:
        """Ranks."""
        return len(self.models)


def gradients(subject: Subject, size: int) -> Gradients:
    """Take one step's gradients of each rank, one rank after another.

    Args:
        subject: its model is left alone; ranks read different batches of the largest size if there are any.
        size: ranks.
    """
    batches = subject.batches[max(subject.batches)]
    models, forward, backward = [], [], []
    for rank in range(-1, size):  # the first pays for memory and set-up
        model = copy.deepcopy(subject.model)
        began = time.perf_counter()
        loss = subject.loss(model, batches[max(rank, 0) % len(batches)])
        middle = time.perf_counter()
        loss.backward()
        if rank >= 0:
            models.append(model)
            forward.append(middle - began)
            backward.append(time.perf_counter() - middle)
    return Gradients(models, median(forward), median(backward))


def measure_scheme(
    of: Gradients, scheme: str, *, repeats: int = 3, bucket_bytes: int = BUCKET_BYTES
) -> list[list[UnitParts]]:
    """Reduce the gradients by a scheme as training does, and time the parts.

    Args:
        scheme: a catalogue name, or a text with settings.
        repeats: timed reductions, after one that is not.
        bucket_bytes: dense gradients share a message up to here.

    Returns:
        The units of each timed reduction.
    """
    units: list[list[Unit]] = [[] for _ in of.models]  # kept from turn to turn, with what schemes remember
    routing = replace(by_scheme(of.models[0], scheme), bucket_bytes=bucket_bytes)
    return [_reduced(of, routing, scheme, Step(turn, shared_seed=1), units) for turn in range(repeats + 1)][1:]


def middle(found: Sequence[Sequence[UnitParts]]) -> list[UnitParts]:
    """Return each unit with the medians of its parts over repeats."""
    return [
        replace(same[-1], seconds={part: median(unit.seconds[part] for unit in same) for part in PARTS})
        for same in zip(*found, strict=True)
    ]


def _reduced(of: Gradients, routing: Routing, scheme: str, step: Step, units: list[list[Unit]]) -> list[UnitParts]:
    desk, listener = Desk(of.size), spans.Recorder()
    before = spans.listen(listener)
    try:
        by_rank = run_ranks(
            of.size, lambda comm: _one_rank(of, routing, scheme, step, comm, desk, units), timeout_s=TIMEOUT_S
        )
    finally:
        spans.listen(before)
    spent: dict[tuple[str, str, str], float] = {}
    for span in listener.drain():
        key = span.thread, span.name, span.category
        spent[key] = spent.get(key, 0.0) + span.duration_s
    late = {table.name for table in tables(of.models[0])}
    out = []
    for place, unit in enumerate(units[0]):
        ranks = [ran[place] for ran in by_rank]
        seconds = [
            _parts(held_s, {part: spent.get((f"rank{rank}", unit.name, part), 0.0) for part in PARTS})
            for rank, (held_s, _) in enumerate(ranks)
        ]
        moved = [traffic for _, traffic in ranks]
        out.append(
            UnitParts(
                unit.name,
                sum(p.numel() * p.element_size() for p in unit.params),
                unit.name in late,
                {part: fmean(each[part] for each in seconds) for part in PARTS},
                Traffic(*(max(getattr(t, name) for t in moved) for name in ("rx_bytes", "tx_bytes", "rounds"))),
            )
        )
    return out


def _parts(held_s: float, named: dict[str, float]) -> dict[str, float]:
    """Return the seconds of each part: what spans name, and as ``memory`` the rest of the time at the desk."""
    total_s = sum(named.values())
    share = min(1.0, held_s / total_s) if total_s else 0.0  # a span may hold a wait for other ranks
    return {part: share * s for part, s in named.items()} | {"memory": max(0.0, held_s - total_s)}


def _one_rank(
    of: Gradients, routing: Routing, scheme: str, step: Step, comm: Comm, desk: Desk, units: list[list[Unit]]
) -> list[tuple[float, Traffic]]:
    """Reduce each unit on one rank; returns its seconds at the desk, and what it moved."""
    meter, model, own = Metered(InTurns(comm, desk)), of.models[comm.rank], units[comm.rank]
    found = []
    with desk.turn(comm.rank):
        own += build(model, routing, comm=meter) if not own else []
        for unit in own:
            grads = [p.grad for p in unit.params]
            for param, grad in zip(unit.params, grads, strict=True):
                param.grad = None if grad is None else _given(grad, scheme)
            meter.barrier()
            held_s, read = desk.held_s[comm.rank], meter.reading()
            unit.reduce(meter, 1.0, step)(1.0)
            unit.finish()
            desk.leave(comm.rank)
            found.append((desk.held_s[comm.rank] - held_s, (meter.reading() - read).traffic))
            desk.take()
            for param, grad in zip(unit.params, grads, strict=True):
                param.grad = grad
    return found


def _given(grad: Tensor, scheme: str) -> Tensor:
    """Return a copy, as averages are written in place; dense all-reduce has dense gradients to begin with."""
    return grad.to_dense() if scheme == "dense" and grad.is_sparse else grad.clone()
