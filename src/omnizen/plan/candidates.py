"""What a whole step would take by each scheme of the catalogue: the plan's choice among all others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from omnizen.measure.facts import ITEMSIZES, Facts, GradientFacts
from omnizen.plan.cost import CODED, Cost, Rates, predict
from omnizen.plan.lazy import LAZY, LazyPull
from omnizen.plan.links import LinkModel
from omnizen.plan.plan import Plan
from omnizen.plan.search import Chosen, predict_step, slowest_rates
from omnizen.protocols import Reducer
from omnizen.types import Sparsity

SHORTENED_FROM = 1000
"""Elements from which a lossy scheme takes a dense gradient, as ``run.prepare`` does."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One scheme for all gradients to which it applies, the others as planned.

    Args:
        step_s: predicted.
        rx_bytes: received by the busiest rank in a step.
        tried_step_s: the same with what a trial measured in place of what was predicted for those gradients.
    """

    scheme: str
    lossy: bool
    step_s: float
    rx_bytes: float
    tried_step_s: float | None = None


def candidates(facts: Facts, plan: Plan) -> list[Candidate]:
    """Predict the step of every scheme that applies to a gradient of the plan, the fastest first.

    Lossy schemes are there only where the price of selecting and quantising was measured, schemes that code only
    where that of coding was. Their gradients count as if they left when backward ends.

    Args:
        facts: the ones that the plan was made from.
    """
    from omnizen.catalog import REDUCERS

    size = facts.world_size
    if size < 2 or len({(link.source, link.dest) for link in facts.links}) < size * (size - 1):
        return []
    if {t.name for t in plan.tensors} != {g.name for g in facts.gradients}:
        return []
    links = LinkModel.of(facts.links, facts.world_size, facts.meetings)
    rates = slowest_rates(facts.devices)
    planned = dict(_planned(facts, plan, links, rates))
    found = []
    for scheme, row in REDUCERS.items():
        applies = [g for g in facts.gradients if g.kind in row.kinds and _large(g, row.lossy)]
        if (
            not applies
            or (row.lossy and not _lossy_priced(rates))
            or (scheme in CODED and not _coding_priced(rates))
        ):
            continue
        chosen = planned | dict(_all_by(scheme, row.make(), applies, links, rates, plan.bucket_bytes))
        step = predict_step(facts, links, rates, chosen, plan.bucket_bytes)
        tried_s = _tried(plan, scheme)
        found.append(Candidate(scheme, row.lossy, step.step_s, step.rx_bytes_per_step, tried_s))
    return sorted(found, key=lambda candidate: candidate.step_s)


def _large(gradient: GradientFacts, lossy: bool) -> bool:
    return not lossy or gradient.kind != "dense" or math.prod(gradient.shape) >= SHORTENED_FROM


def _lossy_priced(rates: Rates) -> bool:
    return math.isfinite(rates.select_elements_per_s) and math.isfinite(rates.quantise_elements_per_s)


def _coding_priced(rates: Rates) -> bool:
    return math.isfinite(rates.code_rows_per_s) and math.isfinite(rates.code_values_per_s)


def _planned(facts: Facts, plan: Plan, links: LinkModel, rates: Rates) -> Iterator[tuple[str, Chosen]]:
    for gradient in facts.gradients:
        scheme = plan.scheme(gradient.name)
        reducer = LazyPull() if scheme == LAZY else scheme
        yield gradient.name, Chosen(scheme, predict(reducer, gradient.sparsity(), links.size, links, rates))


def _all_by(
    scheme: str, reducer: Reducer, gradients: list[GradientFacts], links: LinkModel, rates: Rates, bucket_bytes: int
) -> Iterator[tuple[str, Chosen]]:
    """Predict each gradient by one scheme; of dense ones that share a bucket the first pays for the rounds."""
    filled = bucket_bytes
    for gradient in reversed(gradients):
        cost = predict(reducer, _as_matrix(gradient), links.size, links, rates)
        if gradient.kind == "dense" and filled < bucket_bytes:
            cost = _without_rounds(cost)
        elif gradient.kind == "dense":
            filled = 0
        filled += gradient.nbytes
        yield gradient.name, Chosen(scheme, cost)


def _as_matrix(gradient: GradientFacts) -> Sparsity:
    """Return the pattern; a dense gradient as a matrix, whose shape matters to low-rank schemes."""
    if gradient.kind != "dense" or len(gradient.shape) < 2:
        return gradient.sparsity()
    rows, *rest = gradient.shape
    return Sparsity(rows, math.prod(rest), 1.0, itemsize=ITEMSIZES[gradient.dtype])


def _without_rounds(cost: Cost) -> Cost:
    return replace(cost, seconds=cost.seconds - cost.latency_s, latency_s=0.0)


def _tried(plan: Plan, scheme: str) -> float | None:
    """Return the plan's step with what a scheme took in trials, for those gradients in which it was tried."""
    gaps = [
        other.measured_s - (tensor.predicted_s if tensor.measured_s is None else tensor.measured_s)
        for tensor in plan.tensors
        for other in tensor.rejected
        if other.scheme == scheme and other.measured_s is not None
    ]
    return plan.prediction.step_s + sum(gaps) if gaps else None
