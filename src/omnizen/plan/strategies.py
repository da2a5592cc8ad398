"""The planner over strategies: seconds by formulas and simulation, times what each strategy costs in samples."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from omnizen.measure.facts import CrowdFacts, Facts, PriceFacts
from omnizen.plan.clusters import cluster_of, job_of, update_bytes
from omnizen.plan.executions import Candidate, enumerate_candidates, priced_as
from omnizen.plan.plan import Execution, Plan, check_scheme
from omnizen.simulate.cluster import Cluster, Job
from omnizen.simulate.grouped import grouped
from omnizen.simulate.local import local_steps
from omnizen.simulate.synchronous import synchronous

NEAR = 0.15
"""Strategies within this share of the best are simulated."""
MOST = 12
"""Strategies that are simulated at most."""
CYCLES, MOST_UPDATES = 40, 2000
"""Of a group in a simulation: with few of them, where the first and the last begin and end would decide."""
SAME = 0.005
"""Of strategies that differ less, the simplest is taken: synchronous before local steps before groups."""
ORDER = ("sync", "local", "groups")
WORTH = 1.1
"""Times the samples a second from which an unmeasured strategy is worth a word."""
PLAIN = PriceFacts.model_construct(strategy="sync", samples=1.0, low=1.0, high=1.0, probes=0)
"""What strategies cost that take the same steps as one process."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A candidate with its time to the same loss, relative to plain synchronous training with even shares."""

    candidate: Candidate
    relative: float
    low: float
    high: float
    origin: str = "formula"

    @property
    def simplicity(self) -> tuple[int, bool, bool]:
        """Order of strategies between which seconds do not decide."""
        c = self.candidate
        return ORDER.index(c.strategy), bool(c.compression), len(set(c.samples)) > 1


def plan_strategy(
    facts: Facts,
    *,
    schemes: Iterable[str] | None = None,
    lazy: Container[str] = (),
    compressions: Iterable[str] = (),
    simulate: bool = True,
    ruled_out: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Choose a whole strategy: scheme by tensor, groups, shares of the batch, local steps, compression.

    Expected time is samples to the same loss over samples a second. What a strategy costs in samples comes from the
    facts' ``prices``; only plain synchronous training, with any exact schemes and shares, is known to cost 1. A
    strategy whose price was not measured is listed with what it would gain, and never chosen.

    Args:
        facts: what was measured.
        schemes: as ``make_plan`` takes it.
        lazy: names of tables that may be pulled lazily.
        compressions: catalogue names of schemes that lose something and that the user allows.
        simulate: whether those that formulas cannot tell apart are simulated.
        ruled_out: reasons not to choose a strategy, by its name or "shares" (uneven batches in every step).

    Raises:
        UserError: a scheme does not exist, or the facts lack what is needed.
    """
    lossy = [check_scheme(name) for name in compressions]
    named = None if schemes is None else list(schemes)
    candidates = [
        _priced(candidate, facts)
        for candidate in enumerate_candidates(facts, schemes=named, lazy=lazy, compressions=lossy)
    ]
    usual = candidates[0]
    weighed = [_weigh(c, usual.samples_per_s) for c in candidates]

    def out(w: Weighed) -> bool:
        return w.candidate.price is None or bool(_ruled_out(w.candidate, ruled_out))

    possible = [w for w in weighed if not out(w)]
    if simulate and facts.world_size > 1:
        possible = _simulated(facts, possible, weighed[0])
    best = _simplest(possible)
    chosen = best.candidate
    others = [w for w in [*possible, *filter(out, weighed)] if w is not best]
    others.sort(key=lambda w: (out(w), w.relative))
    return chosen.plan.model_copy(
        update={
            "strategy": chosen.strategy,
            "execution": _execution(best, ""),
            "alternatives": [
                _execution(w, _ruled_out(w.candidate, ruled_out) or _why_not(w, best)) for w in others
            ],
        }
    )


def beside(plan: Plan, facts: Facts, *, lazy: Container[str] = ()) -> Plan:
    """Return a plan of schemes with what other strategies would give by the formulas; none of them is chosen.

    Args:
        plan: of plain synchronous training, from these facts.
        lazy: as ``make_plan`` takes it.
    """
    usual, *candidates = enumerate_candidates(facts, schemes=None, lazy=lazy, compressions=[])
    first = _weigh(replace(usual, price=PLAIN), usual.samples_per_s)
    others = sorted((_weigh(_priced(c, facts), usual.samples_per_s) for c in candidates), key=lambda w: w.relative)
    found = []
    for other in others:
        reason = _why_not(other, first)
        if other.candidate.exact:
            reason = f"{_speed(other, first)}; balance='auto' gives ranks such shares"
        found.append(_execution(other, reason))
    return plan.model_copy(update={"execution": _execution(first, ""), "alternatives": found})


def worth_measuring(plan: Plan) -> str:
    """Return in words the strategy without a price that would gain most; nothing where none gains a tenth."""
    unpriced = [other for other in plan.alternatives if other.price is None]
    if plan.execution is None or not unpriced:
        return ""
    best = max(unpriced, key=lambda other: other.samples_per_s)
    faster = best.samples_per_s / plan.execution.samples_per_s
    if faster < WORTH:
        return ""
    return (
        f"{best.title} would give {faster:.2f} times the samples/s, at a price in samples that nobody has measured "
        "(`omnizen tune` does)"
    )


def _ruled_out(candidate: Candidate, reasons: Mapping[str, str]) -> str:
    if candidate.strategy == "sync":
        return reasons.get("shares", "") if len(set(candidate.samples)) > 1 else ""
    return reasons.get(candidate.strategy, "")


def _priced(candidate: Candidate, facts: Facts) -> Candidate:
    if candidate.exact:
        return replace(candidate, price=PLAIN)
    known = {price.of: price for price in facts.prices}
    return replace(candidate, price=known.get(priced_as(candidate)))


def _weigh(candidate: Candidate, usual_samples_per_s: float, origin: str = "formula") -> Weighed:
    faster = usual_samples_per_s / max(candidate.samples_per_s, 1e-300)
    price = candidate.price or PLAIN
    return Weighed(candidate, faster * price.samples, faster * price.low, faster * price.high, origin)


def _simplest(weighed: Sequence[Weighed]) -> Weighed:
    limit = (1 + SAME) * min(w.relative for w in weighed)
    return min((w for w in weighed if w.relative <= limit), key=lambda w: (w.simplicity, w.relative))


def _simulated(facts: Facts, weighed: Sequence[Weighed], usual: Weighed) -> list[Weighed]:
    """Simulate the best, and what comes close to it, until all of these are simulated."""
    cluster, found = cluster_of(facts), list(weighed)
    usual_rate = simulated_rate(facts, cluster, usual.candidate)
    for _ in range(MOST):
        limit = (1 + NEAR) * min(w.relative for w in found)
        near = [i for i, w in enumerate(found) if w.relative <= limit and w.origin == "formula"]
        if not near:
            break
        at = min(near, key=lambda i: found[i].relative)
        candidate = found[at].candidate
        found[at] = _weigh(
            replace_rate(candidate, simulated_rate(facts, cluster, candidate)), usual_rate, "simulation"
        )
    return found


def replace_rate(candidate: Candidate, samples_per_s: float) -> Candidate:
    """Return the candidate at another speed."""
    per_update = candidate.samples_per_s * candidate.update_s
    return replace(candidate, samples_per_s=samples_per_s, update_s=per_update / max(samples_per_s, 1e-300))


def simulated_rate(facts: Facts, cluster: Cluster, candidate: Candidate) -> float:
    """Return samples a second of a candidate in an event simulation of the measured machines."""
    batch = np.array(candidate.samples, dtype=np.float64)
    if candidate.strategy == "groups":
        inside = [job_of(facts, candidate.plan, group) for group in candidate.groups]
        members = max(len(group) for group in candidate.groups)
        whole = replace(job_of(facts, candidate.plan), model_bytes=update_bytes(facts, members))
        whole = crowded(whole, cluster, facts.crowd)
        updates = min(CYCLES * len(candidate.groups), MOST_UPDATES)
        out = grouped(whole, cluster, candidate.groups, batch, inside=inside, updates=updates)
        return out.samples_per_s
    job = job_of(facts, candidate.plan)
    if candidate.strategy == "local":
        return local_steps(job, cluster, batch, np.array(candidate.local_steps)).samples_per_s
    return synchronous(job, cluster, batch, steps=1 if cluster.law == "constant" else 20).samples_per_s


def crowded(job: Job, cluster: Cluster, crowd: CrowdFacts | None) -> Job:
    """Let servers' messages be as slow as they were measured where all ranks ask all others at once."""
    if crowd is None:
        return job
    size = cluster.size
    idle = Cluster(cluster.network, np.full(size, 1e-9))
    asking = Job([], float(size * crowd.nbytes))
    free_s = size * grouped(asking, idle, size, np.ones(size), updates=20 * size).update_s
    share = min(1.0, free_s / max(crowd.cycle_s - crowd.ask_s, 1e-9))
    return replace(job, crowded_share=share, ask_s=crowd.ask_s)


def _execution(weighed: Weighed, reason: str) -> Execution:
    c = weighed.candidate
    return Execution(
        strategy=c.strategy,
        groups=[list(group) for group in c.groups],
        batch_shares=list(c.samples),
        local_steps=list(c.local_steps),
        compression=c.compression,
        momentum=c.price.momentum if c.price else None,
        lr=c.price.lr if c.price else None,
        update_s=c.update_s,
        samples_per_s=c.samples_per_s,
        price=c.price.samples if c.price else None,
        relative=weighed.relative,
        relative_low=weighed.low,
        relative_high=weighed.high,
        origin="simulation" if weighed.origin == "simulation" else "formula",
        reason=reason,
    )


def _why_not(weighed: Weighed, best: Weighed) -> str:
    c, speed = weighed.candidate, _speed(weighed, best)
    if c.price is None:
        return f"{speed}, but nobody has measured how many samples it needs; it is not chosen unmeasured"
    if weighed.relative <= (1 + SAME) * best.relative:
        return "as good as the one chosen, which is simpler"
    slower = weighed.relative / best.relative
    if c.price.samples > 1:
        needs = f"needs {c.price.samples:.2f} times the samples"
        return f"{slower:.2f} times the time: {needs} at {speed}"
    return f"{slower:.2f} times the time: {speed}"


def _speed(weighed: Weighed, best: Weighed) -> str:
    return f"{weighed.candidate.samples_per_s / best.candidate.samples_per_s:.2f} times the samples/s"


def unsure(plan: Plan) -> list[str]:
    """Return in words which strategies the chosen one cannot be told apart from, and why."""
    chosen, lines = plan.execution, []
    if chosen is None:
        return []
    for other in plan.alternatives:
        if other.price is None or other.relative > (1 + NEAR) * chosen.relative:
            continue
        overlap = other.relative_low <= chosen.relative_high and chosen.relative_low <= other.relative_high
        spread = other.relative_high > other.relative_low or chosen.relative_high > chosen.relative_low
        if overlap and spread:
            lines.append(
                f"{other.title} may be as good: {other.relative_low:.2f} to {other.relative_high:.2f} of the usual "
                f"time, where the chosen one takes {chosen.relative_low:.2f} to {chosen.relative_high:.2f}; more "
                "probes would tell"
            )
    return lines
