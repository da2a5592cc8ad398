"""plan="auto": measure the links, watch the first steps, then plan and switch, on all ranks at the same step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import torch
from torch import nn
from torch.nn import Parameter

from omnizen.measure.device import measure_devices
from omnizen.measure.facts import DeviceFacts, Facts, GradientFacts, LinkFacts, MeetingFacts, StepFacts
from omnizen.measure.gradient import PatternProbe
from omnizen.measure.links import measure_links, measure_meetings
from omnizen.measure.model import model_digest
from omnizen.measure.texts import gather_texts
from omnizen.plan.plan import Plan
from omnizen.plan.search import make_plan
from omnizen.plan.share import share_plan
from omnizen.plan.strategies import beside
from omnizen.plan.trial import refine
from omnizen.protocols import Comm
from omnizen.train.router import Routing, tables, trainable
from omnizen.train.rows import no_rows, real, row_shape, rows_of, sum_dtype
from omnizen.train.sync import Engine, Round
from omnizen.train.units import Unit
from omnizen.types import Contribution

WATCHED_STEPS = 3
"""Steps before the plan. The first pays for caches and allocations; the others are timed."""
LINKS_BUDGET_S = 2.0
ROWS_FROM = 1024
"""A dense matrix with fewer rows is not watched: what its zero rows could save is less than a message costs."""


def first_routing(model: nn.Module, values: str) -> Routing:
    """Return what synchronises the watched steps: the plainest exact schemes."""
    return Routing({table.name: "agsparse" for table in tables(model) if table.sparse}, values=values)


@dataclass(slots=True)
class Machines:
    """What is measured before the first step."""

    links: list[LinkFacts]
    devices: list[DeviceFacts]
    meetings: MeetingFacts


def measure_machines(gradients: Comm) -> Machines:
    """Measure each rank's device and the links between them (collective, about ``LINKS_BUDGET_S`` long)."""
    devices = measure_devices(gradients)
    return Machines(measure_links(gradients, LINKS_BUDGET_S), devices, measure_meetings(gradients))


@dataclass(slots=True)
class Watch:
    """Looks on while the first steps go by; ``decide`` is called on all ranks after the last of them.

    Args:
        in_force: called with plan, facts and the seconds that planning took; makes the engine follow the plan.
        lazy: tables that the plan may have pulled lazily.
    """

    model: nn.Module
    engine: Engine
    machines: Machines
    samples: Callable[[], int]
    in_force: Callable[[Plan, Facts, float], None]
    lazy: frozenset[str] = frozenset()
    probe: PatternProbe = field(init=False)
    rounds: list[Round] = field(default_factory=list)
    last_rows: dict[str, Contribution] = field(default_factory=dict)
    _names: dict[int, str] = field(init=False)
    _watched: set[str] = field(init=False)

    def __post_init__(self) -> None:
        known = {table.name for table in tables(self.model)}
        params = trainable(self.model)
        self._names = {id(p): name for name, p in params}
        self._watched = {
            name
            for name, p in params
            if not p.is_complex() and (name in known or (p.dim() > 1 and p.shape[0] >= ROWS_FROM))
        }
        self.probe = PatternProbe(self.engine.control)
        self.engine.probe = self.look
        self.engine.observers.append(self.round)

    def look(self, unit: Unit) -> None:
        """Note this rank's own pattern before it is reduced (in the wire thread)."""
        for param in unit.params:
            name = self._names[id(param)]
            if name in self._watched:
                self._look(name, param)

    def _look(self, name: str, param: Parameter) -> None:
        rows = no_rows(param) if param.grad is None else rows_of(param.grad)
        num_rows, width = row_shape(param.shape)
        self.probe.observe(
            name,
            rows.indices,
            num_rows,
            width,
            rows.values.element_size(),
            shape=tuple(param.shape),
            dtype=_dtype(param),
        )
        self.last_rows[name] = rows

    def round(self, done: Round) -> None:
        """Note one synchronised backward; decide after the last watched one."""
        self.rounds.append(done)
        if len(self.rounds) == WATCHED_STEPS:
            self.stop()
            began_s = time.monotonic()
            facts, plan = self.engine.call(self.decide)
            self.last_rows.clear()
            self.in_force(plan, facts, time.monotonic() - began_s)

    def stop(self) -> None:
        """Look no longer."""
        self.engine.probe = None
        if self.round in self.engine.observers:
            self.engine.observers.remove(self.round)

    def decide(self) -> tuple[Facts, Plan]:
        """Gather the facts, plan on rank 0, share the plan and try near-ties (in the wire thread)."""
        control = self.engine.control
        everyone = self._everyone(control)
        facts = Facts(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            torch_version=torch.__version__,
            world_size=control.size,
            model_digest=model_digest(self.model),
            devices=with_rates(self.machines.devices, everyone),
            links=self.machines.links,
            meetings=self.machines.meetings,
            gradients=self._gradients(),
            step=_slowest(everyone),
        )
        facts = Facts.from_toml(gather_texts(control, facts.to_toml())[0])
        plan = share_plan(beside(make_plan(facts), facts) if control.rank == 0 else None, control)
        return facts, refine(plan, self.engine.gradients, self._samples(plan))

    def _samples(self, plan: Plan) -> dict[str, Contribution]:
        sparse = {t.name for t in plan.tensors if t.kind != "dense"}
        return {name: rows for name, rows in self.last_rows.items() if name in sparse}

    def _gradients(self) -> list[GradientFacts]:
        seen = {facts.name: facts for facts in self.probe.finish()}
        found = []
        for name, p in trainable(self.model):
            dense = GradientFacts(name=name, kind="dense", shape=tuple(real(p.detach()).shape), dtype=_dtype(p))
            known = seen.get(name, dense)
            lazy = name in self.lazy if known.kind == "row-sparse" else None
            found.append(known.model_copy(update={"ready": self._ready(p), "lazy": lazy}))
        return found

    def _ready(self, param: Parameter) -> float | None:
        """Return the share of backward after which a gradient was there: the earliest of the timed rounds."""
        shares = [
            (done.arrived_s[id(param)] - done.began_s) / (done.backward_ended_s - done.began_s)
            for done in self.rounds[1:]
            if id(param) in done.arrived_s and done.backward_ended_s > done.began_s
        ]
        return min(1.0, max(0.0, min(shares))) if shares else None

    def _everyone(self, control: Comm) -> list[tuple[float, float, int]]:
        """Return each rank's seconds of a step and of its backward, and its samples: those of its best step.

        What lies between two waits is timed: update, data, forward, backward.
        """
        pairs = list(zip(self.rounds, self.rounds[1:], strict=False))
        compute_s = min(b.backward_ended_s - a.ended_s for a, b in pairs)
        backward_s = min(b.backward_ended_s - b.began_s for _, b in pairs)
        own = torch.tensor([compute_s, backward_s, self.samples()], dtype=torch.float64, device=control.device)
        rows = (part.tolist() for (part,) in control.all_gather([own]).wait())
        return [(compute, min(backward, compute), int(samples)) for compute, backward, samples in rows]


def _slowest(everyone: Sequence[tuple[float, float, int]]) -> StepFacts:
    compute_s, backward_s, samples = max(everyone)
    return StepFacts(compute_s=compute_s, backward_s=backward_s, samples=samples)


def with_rates(devices: Sequence[DeviceFacts], everyone: Sequence[tuple[float, float, int]]) -> list[DeviceFacts]:
    """Return devices with the samples a second that each one's steps came to, where samples are known.

    Args:
        everyone: by rank, seconds of a step, of its backward, and samples.
    """
    found = []
    for device in devices:
        compute_s, _, samples = everyone[device.rank]
        rate = {str(samples): samples / compute_s} if samples and compute_s > 0 else {}
        found.append(device.model_copy(update={"samples_per_s": device.samples_per_s or rate}))
    return found


def _dtype(param: Parameter) -> str:
    return str(sum_dtype(param.dtype)).removeprefix("torch.")
