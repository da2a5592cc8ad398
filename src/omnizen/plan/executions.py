"""The strategies that are weighed, and how fast each would be by formulas."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from omnizen.measure.facts import Facts, PriceFacts, StepFacts
from omnizen.plan.apportion import apportion
from omnizen.plan.clusters import BACKWARD_SHARE, samples_of, seconds_of, update_bytes
from omnizen.plan.cost import predict
from omnizen.plan.efficiency import of_layout
from omnizen.plan.layouts import Layout, by_speed, even, sizes
from omnizen.plan.lazy import LAZY
from omnizen.plan.links import LinkModel
from omnizen.plan.plan import Execution, Plan, StrategyName
from omnizen.plan.search import make_plan, slowest_rates
from omnizen.types import Sparsity

GAIN = 0.01
"""Uneven shares that make computing less than so much faster are not worth their trouble."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to train, and what it gives by formulas.

    Args:
        samples: of each rank in a step.
        groups: ranks of each group.
        local_steps: of each rank between two averages; empty unless strategy is "local".
        plan: schemes of the gradients.
        update_s: seconds between two updates of the model.
        samples_per_s: of all ranks together.
        price: what it costs in samples; None when that was not measured.
    """

    strategy: StrategyName
    samples: tuple[int, ...]
    plan: Plan
    update_s: float
    samples_per_s: float
    groups: tuple[tuple[int, ...], ...] = ()
    local_steps: tuple[int, ...] = ()
    compression: str = ""
    price: PriceFacts | None = None

    @property
    def exact(self) -> bool:
        """Whether it takes the steps of one process on the union batch, so that its price is 1."""
        return self.strategy == "sync" and not self.compression


def mean_steps(local_steps: Sequence[int]) -> float:
    """Return the mean over ranks of steps between two averages; 1 where all steps are taken together."""
    return sum(local_steps) / len(local_steps) if local_steps else 1.0


def priced_as(what: Candidate | Execution) -> tuple[str, int, float, str]:
    """Return what a strategy's price is kept under, as ``PriceFacts.of`` says it."""
    count = len(what.groups) if what.strategy == "groups" else 1
    return what.strategy, count, mean_steps(what.local_steps), what.compression


def enumerate_candidates(
    facts: Facts, *, schemes: Sequence[str] | None, lazy: Container[str], compressions: Sequence[str]
) -> Iterator[Candidate]:
    """Return every strategy that is weighed: scheme by tensor, groups, shares, local steps, compression.

    Args:
        schemes: as ``make_plan`` takes it.
        compressions: catalogue names of lossy schemes that the user allows for dense gradients.
    """
    size, samples = facts.world_size, samples_of(facts)
    for compression in ("", *compressions):
        plan = make_plan(facts, schemes=_allowed(schemes, compression), lazy=lazy)
        for shares in _shares(facts, samples):
            yield _synchronous(facts, plan, shares, compression, schemes, lazy)
        if size == 1 or compression:
            continue
        if any(tensor.scheme == LAZY for tensor in plan.tensors):  # owners of rows go with synchronous steps only
            eager = [gradient.model_copy(update={"lazy": None}) for gradient in facts.gradients]
            plan = make_plan(facts.model_copy(update={"gradients": eager}), schemes=schemes)
            plan = plan.model_copy(update={"facts_digest": facts.digest()})
        if _speeds_known(facts):
            for layout in _layouts(facts, samples):
                yield _grouped(facts, plan, layout)
        for steps in _local_steps(facts, samples):
            yield _local(facts, plan, steps)


def _speeds_known(facts: Facts) -> bool:
    measured = facts.step is not None and facts.step.samples > 0 and facts.step.compute_s > 0
    return len(facts.devices) == facts.world_size and (measured or all(d.samples_per_s for d in facts.devices))


def _allowed(schemes: Sequence[str] | None, compression: str) -> list[str] | None:
    if not compression:
        return None if schemes is None else list(schemes)
    from omnizen.catalog import REDUCERS

    exact = [name for name, row in REDUCERS.items() if not row.lossy and name != "dense"]
    return [*(exact if schemes is None else schemes), compression]


def speeds(facts: Facts, samples: int) -> list[float]:
    """Return samples a second of each rank at a batch; equal where computing was not measured."""
    return [samples / s if s > 0 else 1.0 for s in seconds_of(facts, [samples] * facts.world_size)]


def _shares(facts: Facts, samples: int) -> list[tuple[int, ...]]:
    size = facts.world_size
    equal = (samples,) * size
    if size == 1 or samples * size < 2 * size:
        return [equal]
    proportional = apportion(samples * size, speeds(facts, samples))
    faster = _slowest_s(facts, proportional) <= (1 - GAIN) * _slowest_s(facts, equal)
    return [equal, proportional] if faster else [equal]


def _slowest_s(facts: Facts, shares: Sequence[int]) -> float:
    return float(seconds_of(facts, shares).max())


def _synchronous(
    facts: Facts,
    plan: Plan,
    shares: tuple[int, ...],
    compression: str,
    schemes: Sequence[str] | None,
    lazy: Container[str],
) -> Candidate:
    compute_s = _slowest_s(facts, shares)
    backward = (
        facts.step.backward_s / facts.step.compute_s if facts.step and facts.step.compute_s else BACKWARD_SHARE
    )
    if facts.step is None or abs(compute_s - facts.step.compute_s) > 1e-9 * compute_s:
        step = StepFacts(compute_s=compute_s, backward_s=backward * compute_s, samples=samples_of(facts))
        again = facts.model_copy(update={"step": step})
        plan = make_plan(again, schemes=_allowed(schemes, compression), lazy=lazy)
        plan = plan.model_copy(update={"facts_digest": facts.digest()})
    seconds = max(plan.prediction.step_s, 1e-12)
    everyone = (tuple(range(facts.world_size)),)
    return Candidate("sync", shares, plan, seconds, sum(shares) / seconds, everyone, (), compression)


def _layouts(facts: Facts, samples: int) -> list[Layout]:
    size, total = facts.world_size, samples * facts.world_size
    found: list[Layout] = []
    speed = speeds(facts, samples)
    for groups in sizes(size):
        if groups == 1 or total // groups < -(-size // groups):
            continue
        found.append(even(size, groups, total // groups))
        uneven = by_speed(speed, groups, total // groups)
        if groups < size and max(speed) > (1 + GAIN) * min(speed):
            found.append(uneven)
    return list(dict.fromkeys(found))


def _grouped(facts: Facts, plan: Plan, layout: Layout) -> Candidate:
    members = max(len(group) for group in layout.groups)
    found = of_layout(facts, layout, nbytes=int(update_bytes(facts, members)))
    rate = sum(
        sum(layout.samples[r] for r in group) / seconds
        for group, seconds in zip(layout.groups, found.cycle_s, strict=True)
    )
    return Candidate("groups", layout.samples, plan, found.update_s, rate, layout.groups)


def _local_steps(facts: Facts, samples: int) -> Iterator[tuple[int, ...]]:
    """Return steps of each rank: those whose price was measured and some others, the same for all and by speed."""
    speed = speeds(facts, samples)
    measured = {max(1, round(p.local_steps)) for p in facts.prices if p.strategy == "local"}
    for every in sorted({4, 16} | measured):
        yield (every,) * facts.world_size
        steps = apportion(every * facts.world_size, speed)
        if len(set(steps)) > 1:
            yield steps


def _local(facts: Facts, plan: Plan, steps: tuple[int, ...]) -> Candidate:
    size, samples = facts.world_size, samples_of(facts)
    links, rates = LinkModel.of(facts.links, size, facts.meetings), slowest_rates(facts.devices)
    parameters = Sparsity(sum(g.nbytes for g in facts.gradients) // 4, 1, 1.0)
    average_s = predict("dense", parameters, size, links, rates).seconds + size * links.latency_s
    one_s = seconds_of(facts, [samples] * size)
    seconds = max(max(k * float(s) for k, s in zip(steps, one_s, strict=True)) + average_s, 1e-12)
    everyone = (tuple(range(size)),)
    return Candidate("local", (samples,) * size, plan, seconds, sum(steps) * samples / seconds, everyone, steps)
