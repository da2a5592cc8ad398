"""What more machines of the measured kind would give: event simulations of up to some thousand workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from omnizen.comm.links import Floats
from omnizen.errors import UserError
from omnizen.measure.facts import Facts
from omnizen.plan.clusters import BACKWARD_SHARE, buckets, cluster_of, samples_of, update_bytes
from omnizen.plan.cost import predict
from omnizen.plan.efficiency import measured_variation
from omnizen.plan.lazy import LAZY
from omnizen.plan.links import LinkModel
from omnizen.plan.plan import Plan
from omnizen.plan.search import make_plan, slowest_rates
from omnizen.simulate.cluster import Cluster, Job, Outcome, Reduction
from omnizen.simulate.grouped import grouped
from omnizen.simulate.local import local_steps
from omnizen.simulate.network import Network
from omnizen.simulate.phases import Fixed, Meet
from omnizen.simulate.synchronous import synchronous

MOST_WORKERS = 4096
LOCAL_STEPS = 16
GROUP_OF = 8
"""Workers in a group, where groups are shown."""
SIZES = (8, 64, 512, 4096)


@dataclass(frozen=True, slots=True)
class AtScale:
    """What one strategy gives on so many workers.

    Args:
        title: the strategy in a few words.
        samples_per_s: of all workers together.
        efficiency: that over the sum of what each could do alone.
        update_s: seconds between two updates of the model.
        price: samples to the same loss, over those of plain synchronous training; None when not measured.
    """

    workers: int
    title: str
    samples_per_s: float
    efficiency: float
    update_s: float
    price: float | None


def at_scale(facts: Facts, sizes: Sequence[int] = SIZES, *, groups: bool = True) -> list[AtScale]:
    """Simulate strategies on clusters of other sizes.

    Args:
        facts: of at least two machines.
        sizes: numbers of workers, up to 4,096.
        groups: whether compute groups are simulated too, which takes seconds for thousands of workers.

    Raises:
        UserError: a size cannot be, or the facts lack the time of computing, links or gradients.
    """
    if facts.world_size < 2 or not facts.gradients or facts.step is None or facts.step.compute_s <= 0:
        raise UserError(
            "facts of at least two workers with gradients and the time of a step are needed to say what more would "
            "give; measure with `omnizen measure` and the model, or take facts.toml of a run"
        )
    wrong = next((n for n in sizes if not 2 <= n <= MOST_WORKERS), None)
    if wrong is not None:
        raise UserError(f"2 to {MOST_WORKERS} workers can be simulated, not {wrong}")
    small, plan = cluster_of(facts), make_plan(facts)
    return [found for n in sizes for found in _of_size(facts, plan, _grown(small, n), groups)]


def assumptions(facts: Facts) -> list[str]:
    """Return what the numbers rest on, a line each."""
    variation = measured_variation(facts)
    times = f"vary by {variation:.0%}, lognormally" if variation else "do not vary"
    lines = [
        f"worker r is like measured worker r mod {facts.world_size}: the same device, link and latency",
        "each link keeps its own rate whoever else sends: the network's middle is no bottleneck",
        f"each worker keeps about {samples_of(facts)} samples a step, so the global batch grows with the workers; "
        "what larger batches cost in samples is not counted",
        f"work times {times}; waiting for the slowest of many follows from that",
        "groups push whole dense gradients and touched rows to servers on all ranks",
    ]
    if any(g.kind != "dense" for g in facts.gradients):
        lines.append("rows that more workers touch follow from those measured, as if they were independent")
    return lines


def _grown(cluster: Cluster, size: int) -> Cluster:
    like = np.arange(size) % cluster.size
    fixed = np.broadcast_to(np.asarray(cluster.fixed_s), (cluster.size,))[like]
    return replace(cluster, network=cluster.network.repeated(size), sample_s=cluster.sample_s[like], fixed_s=fixed)


def _of_size(facts: Facts, plan: Plan, cluster: Cluster, with_groups: bool) -> Iterator[AtScale]:
    n, samples = cluster.size, samples_of(facts)
    even = np.full(n, float(samples))
    own_rates = even / np.maximum(cluster.mean_s(even), 1e-12)
    best = float(own_rates.sum())
    shared = _by_speed(cluster, even)
    steps = 1 if cluster.law == "constant" else 5
    known = {price.of: price.samples for price in facts.prices}

    def made(title: str, out: Outcome, price: float | None) -> AtScale:
        return AtScale(n, title, out.samples_per_s, out.samples_per_s / best, out.update_s, price)

    job = _job(facts, plan, n, cluster.network)
    yield made("synchronous", synchronous(job, cluster, even, steps=steps), 1.0)
    if shared is not None:
        yield made("synchronous, shares by speed", synchronous(job, cluster, shared, steps=steps), 1.0)
    price = known.get(("local", 1, float(LOCAL_STEPS), ""))
    if shared is None:
        yield made(f"{LOCAL_STEPS} local steps", local_steps(job, cluster, even, np.full(n, LOCAL_STEPS)), price)
    else:
        every = np.maximum(1, (LOCAL_STEPS * shared / even).round())
        yield made(f"{LOCAL_STEPS} local steps, by speed", local_steps(job, cluster, even, every), price)
    groups = n // GROUP_OF
    if with_groups and groups > 1:
        inside = _job(facts, plan, GROUP_OF, cluster.network.part(np.arange(GROUP_OF)))
        whole = replace(job, model_bytes=update_bytes(facts, GROUP_OF, n))
        out = grouped(whole, cluster, groups, even if shared is None else shared, inside=[inside] * groups)
        yield made(f"groups of {GROUP_OF}", out, known.get(("groups", groups, 1.0, "")))


def _by_speed(cluster: Cluster, even: Floats) -> Floats | None:
    """Return shares with which all compute equally long; None where even ones do."""
    mean_s = cluster.mean_s(even)
    if mean_s.max() <= 1.01 * mean_s.min():
        return None
    speed = even / mean_s
    return even.sum() * speed / speed.sum()


def _model_of(network: Network) -> LinkModel:
    after = np.roll(network.down, -1)
    slowest = float(min(network.up.min(), network.down.min()))
    latency = float(2 * network.near.max())
    return LinkModel(network.size, latency, float(np.minimum(network.up, after).min()), slowest, slowest, latency)


def _job(facts: Facts, plan: Plan, size: int, network: Network) -> Job:
    """Return the gradients' reductions by the cheapest exact schemes at this size."""
    from omnizen.catalog import REDUCERS

    model, rates = _model_of(network), slowest_rates(facts.devices)
    reductions = buckets(facts, plan, model)
    weighed = {
        t.name: [name for name in (t.scheme, *(r.scheme for r in t.rejected)) if name != LAZY] for t in plan.tensors
    }
    for gradient in facts.gradients:
        if gradient.kind != "dense":
            pattern = gradient.sparsity()
            costs = [predict(REDUCERS[s].make(), pattern, size, model, rates) for s in weighed[gradient.name]]
            cost = min(costs, key=lambda c: c.seconds)
            reductions.append(Reduction([Fixed(cost.wire_s + cost.latency_s)], 1.0, cost.cpu_s))
    step = facts.step
    share = step.backward_s / step.compute_s if step and step.compute_s else BACKWARD_SHARE
    return Job(reductions, float(sum(g.nbytes for g in facts.gradients)), share, [Meet(8.0)])
