"""The planner: for each gradient the cheapest scheme of the catalogue, and what the whole step will take."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, get_args

from omnizen.measure.facts import ITEMSIZES, DeviceFacts, Facts, GradientFacts, Kind
from omnizen.plan.cost import CODED, Cost, Rates, predict
from omnizen.plan.lazy import LAZY, LazyPull
from omnizen.plan.links import LinkModel
from omnizen.plan.plan import DDP_BUCKET_BYTES, Plan, Prediction, Rejected, TensorPlan, check_scheme
from omnizen.plan.timeline import Transfer, exposed_s, fill_buckets
from omnizen.plan.words import amount, duration
from omnizen.protocols import Reducer
from omnizen.types import Sparsity

BUCKET_CHOICES = (DDP_BUCKET_BYTES, *(2**i * 2**20 for i in (3, 2, 1, 0)))
"""Bucket sizes that are compared, bytes; the first wins a tie."""
CLEARLY_LAZY = 0.8
"""Lazy pull must be predicted to take at most this share of the best other scheme's time: ranks meet twice more in
a step, and no trial can correct the prediction before training follows it."""
CLEARLY_PACKED = 0.95
"""So must dense gradients with packed exponents: their processor time is never hidden, and no trial follows."""
BUCKETED = ("dense", "dense-packed")
"""Schemes whose gradients share buckets; one of them serves all."""
SAME = 0.005
"""A difference of predictions below this share is not worth a reason."""


class Chosen(NamedTuple):
    """A gradient's scheme and what it costs by itself."""

    scheme: str
    cost: Cost


def make_plan(facts: Facts, *, schemes: Iterable[str] | None = None, lazy: Container[str] = ()) -> Plan:
    """Choose a scheme for every gradient; the same facts always give the same plan.

    Args:
        facts: what was measured.
        schemes: consider only these catalogue names; a gradient to which none of them applies is reduced dense.
            Schemes that lose something are considered only when they are named here.
        lazy: names of tables that may be pulled lazily (their optimizer is row-wise, and batches name their rows),
            beside those of which the facts say so.

    Raises:
        UserError: when a scheme does not exist, or the facts lack what is needed.
    """
    links = LinkModel.of(facts.links, facts.world_size, facts.meetings)
    rates = slowest_rates(facts.devices)
    applying = _applying(None if schemes is None else [check_scheme(name) for name in schemes], _unpriced(facts))
    bucketed = _bucket_scheme(facts, links, rates, applying["dense"])
    alike: dict[Hashable, tuple[TensorPlan, Cost]] = {}  # layers repeat, and so do their gradients
    tensors, chosen = [], {}
    for gradient in facts.gradients:
        may_wait = gradient.kind == "row-sparse" and bool(gradient.lazy or gradient.name in lazy)
        if (key := (gradient.pattern_key(), may_wait)) not in alike:
            pattern = gradient.sparsity()
            costs = {
                name: predict(reducer, pattern, facts.world_size, links, rates)
                for name, reducer in applying[gradient.kind].items()
            }
            if may_wait:
                costs[LAZY] = predict(LazyPull(), pattern, facts.world_size, links, rates)
            first = _choose(gradient, pattern, costs, bucketed)
            alike[key] = first, costs[first.scheme]
        tensor, cost = alike[key]
        chosen[gradient.name] = Chosen(tensor.scheme, cost)
        tensors.append(tensor.model_copy(update={"name": gradient.name}))
    bucket_bytes = _choose_bucket_bytes(facts, links, rates, chosen)
    return Plan(
        world_size=facts.world_size,
        model_digest=facts.model_digest,
        torch_version=facts.torch_version,
        bucket_bytes=bucket_bytes,
        tensors=tensors,
        prediction=predict_step(facts, links, rates, chosen, bucket_bytes),
        facts_digest=facts.digest(),
    )


def slowest_rates(devices: Sequence[DeviceFacts]) -> Rates:
    """Return the rates of the slowest device, for which all others wait; infinite where nothing was measured."""

    def least(values: Iterable[float | None]) -> float:
        return min((v for v in values if v is not None), default=math.inf)

    return Rates(
        least(d.merge_bytes_per_s for d in devices),
        least(d.merge_rows_per_s for d in devices),
        least(d.copy_bytes_per_s for d in devices),
        least(d.bits_per_s for d in devices),
        least(d.locate_rows_per_s for d in devices),
        least(d.code_rows_per_s for d in devices),
        least(d.code_values_per_s for d in devices),
        max((d.code_part_s or 0.0 for d in devices), default=0.0),
        max((d.code_values_part_s or 0.0 for d in devices), default=0.0),
        least(d.select_elements_per_s for d in devices),
        least(d.quantise_elements_per_s for d in devices),
    )


def _unpriced(facts: Facts) -> Container[str]:
    """Return schemes whose work has no measured rate: where the price is not known, nobody is made to pay it."""
    rates = ("code_rows_per_s", "code_values_per_s")
    return CODED if any(getattr(device, rate) is None for device in facts.devices for rate in rates) else ()


def _applying(allowed: Sequence[str] | None, unpriced: Container[str]) -> dict[Kind, dict[str, Reducer]]:
    """Return the reducers that apply to each kind of gradient, in the catalogue's order; dense where none does."""
    from omnizen.catalog import REDUCERS, schemes

    def of(kind: Kind) -> list[str]:
        fit = schemes(kind, lossy=allowed is not None)
        wanted = [name for name in fit if (name not in unpriced if allowed is None else name in allowed)]
        return wanted or ["dense"]

    return {kind: {name: REDUCERS[name].make() for name in of(kind)} for kind in get_args(Kind)}


def _bucket_scheme(facts: Facts, links: LinkModel, rates: Rates, applying: Mapping[str, Reducer]) -> str:
    """Return how buckets of dense gradients travel, by what one of the usual size would take."""
    total = min(DDP_BUCKET_BYTES, sum(g.nbytes for g in facts.gradients if g.kind == "dense"))
    bucket = Sparsity(max(1, total // 4), 1, 1.0)
    costs = {
        name: predict(reducer, bucket, links.size, links, rates).seconds
        for name, reducer in applying.items()
        if name in BUCKETED
    }
    best = min(costs, key=lambda name: costs[name], default="dense")
    return best if costs.get(best, 0.0) <= CLEARLY_PACKED * costs.get("dense", math.inf) else "dense"


def _choose(gradient: GradientFacts, pattern: Sparsity, costs: dict[str, Cost], bucketed: str) -> TensorPlan:
    eager = {name: cost for name, cost in costs.items() if name != LAZY}
    best = simplest(eager)
    if gradient.kind == "dense" and best in BUCKETED and bucketed in costs:
        best = bucketed
    if LAZY in costs and costs[LAZY].seconds <= CLEARLY_LAZY * costs[best].seconds:
        best = LAZY
    rejected = [
        Rejected(
            scheme=name,
            predicted_s=cost.seconds,
            rx_bytes=cost.traffic.rx_bytes,
            wire_s=cost.wire_s,
            reason=_ALIKE if _in_one_bucket(gradient, name, best) else why_not(cost, costs[best], pattern, name),
        )
        for name, cost in costs.items()
        if name != best
    ]
    return TensorPlan(
        name=gradient.name,
        kind=gradient.kind,
        scheme=best,
        predicted_s=costs[best].seconds,
        rx_bytes=costs[best].traffic.rx_bytes,
        wire_s=costs[best].wire_s,
        rejected=sorted(rejected, key=lambda r: r.predicted_s),
    )


_ALIKE = "dense gradients travel alike, in common buckets"


def _in_one_bucket(gradient: GradientFacts, *schemes: str) -> bool:
    return gradient.kind == "dense" and all(scheme in BUCKETED for scheme in schemes)


def simplest(costs: Mapping[str, Cost]) -> str:
    """Return the cheapest scheme; of those that cost the same, the one with the fewest rounds.

    What still ties comes in the order of seconds, then in the catalogue's.
    """
    limit_s = (1 + SAME) * min(cost.seconds for cost in costs.values())
    return min(
        (name for name, cost in costs.items() if cost.seconds <= limit_s),
        key=lambda name: (costs[name].traffic.rounds, costs[name].seconds),
    )


def why_not(cost: Cost, best: Cost, pattern: Sparsity, scheme: str) -> str:
    """Say in words what makes a scheme slower than the best one."""
    if scheme == LAZY and cost.seconds < best.seconds:
        gain = 1 - cost.seconds / best.seconds
        return f"{gain:.0%} faster by the formulas, too little for meeting twice more in a step"
    if cost.seconds <= (1 + SAME) * best.seconds:
        return "as good as the one chosen" + (f", within {SAME:.1%}" if cost.seconds > best.seconds else "")
    slower = f"{cost.seconds / best.seconds:.2f} times the time" if best.seconds else "slower"
    gaps = {
        "wire": cost.wire_s - best.wire_s,
        "latency": cost.latency_s - best.latency_s,
        "cpu": cost.cpu_s - best.cpu_s,
    }
    if max(gaps, key=lambda key: gaps[key]) == "wire":
        because = f"receives {amount(cost.traffic.rx_bytes)} instead of {amount(best.traffic.rx_bytes)}"
        if scheme == "dense":
            because += f" because it sends all rows where a worker has {pattern.density:.1%} of them"
    elif max(gaps, key=lambda key: gaps[key]) == "latency":
        because = f"takes {cost.traffic.rounds} rounds instead of {best.traffic.rounds}"
    else:
        because = f"the processor merges for {duration(cost.cpu_s)} instead of {duration(best.cpu_s)}"
        if cost.wire_s < best.wire_s:
            because += f", more than the {duration(best.wire_s - cost.wire_s)} that it saves on the wire"
    return f"{slower}: {because}"


def _transfers(
    facts: Facts, links: LinkModel, rates: Rates, chosen: Mapping[str, Chosen], bucket_bytes: int
) -> list[tuple[Transfer, Cost]]:
    backward_s = facts.step.backward_s if facts.step else 0.0
    dense = [g for g in facts.gradients if g.kind == "dense" and chosen[g.name].scheme in BUCKETED]
    bucketed = {g.name for g in dense}
    sizes = [g.nbytes for g in dense]
    total, done, ready_s, out = sum(sizes), 0, 0.0, []
    for bucket in fill_buckets(sizes, bucket_bytes):
        nbytes = sum(sizes[i] for i in bucket)
        done += nbytes
        itemsize = ITEMSIZES[dense[bucket[0]].dtype]
        scheme = chosen[dense[bucket[0]].name].scheme
        cost = predict(scheme, Sparsity(nbytes // itemsize, 1, 1.0, itemsize=itemsize), links.size, links, rates)
        measured = [dense[i].ready for i in bucket]
        shares = [share for share in measured if share is not None]
        if len(shares) < len(measured):
            shares = [done / total if total else 1.0]
        ready_s = max(ready_s, backward_s * max(shares))  # a bucket waits for those before it
        out.append((Transfer(ready_s, cost.wire_s + cost.latency_s, cost.cpu_s), cost))
    for gradient in facts.gradients:
        if gradient.name not in bucketed:
            cost = chosen[gradient.name].cost
            out.append((Transfer(backward_s, cost.wire_s + cost.latency_s, cost.cpu_s), cost))
    return out


def _choose_bucket_bytes(facts: Facts, links: LinkModel, rates: Rates, chosen: Mapping[str, Chosen]) -> int:
    if facts.step is None:
        return DDP_BUCKET_BYTES
    backward_s = facts.step.backward_s

    def exposed(bucket_bytes: int) -> float:
        transfers = [t for t, _ in _transfers(facts, links, rates, chosen, bucket_bytes)]
        return round(exposed_s(transfers, backward_s), 6)  # a gain below a microsecond is none

    return min(BUCKET_CHOICES, key=exposed)


def predict_step(
    facts: Facts, links: LinkModel, rates: Rates, chosen: Mapping[str, Chosen], bucket_bytes: int
) -> Prediction:
    """Predict one step from the cost of each gradient's scheme.

    Args:
        chosen: the scheme and its cost by name of the gradient; dense ones are bucketed anew.
    """
    transfers = _transfers(facts, links, rates, chosen, bucket_bytes)
    step = facts.step
    compute_s, backward_s = (step.compute_s, step.backward_s) if step else (0.0, 0.0)
    exposed = exposed_s([t for t, _ in transfers], backward_s)
    # Ranks agree on the step by one small all-gather: a round of headers and one to each peer.
    control_s = links.size * links.latency_s if links.size > 1 else 0.0
    return Prediction(
        step_s=compute_s + exposed + control_s,
        compute_s=compute_s,
        exposed_comm_s=exposed,
        comm_s=sum(cost.seconds for _, cost in transfers),
        control_s=control_s,
        rx_bytes_per_step=sum(cost.traffic.rx_bytes for _, cost in transfers),
    )
