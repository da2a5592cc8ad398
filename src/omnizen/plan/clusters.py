"""From facts to what is simulated: a cluster of the measured machines, and the job on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from omnizen.comm.links import Floats
from omnizen.measure.facts import ITEMSIZES, Facts, GradientFacts
from omnizen.plan.cost import predict
from omnizen.plan.efficiency import compute_seconds, measured_variation
from omnizen.plan.links import LinkModel, without_noise
from omnizen.plan.plan import Plan
from omnizen.plan.search import BUCKETED, slowest_rates
from omnizen.plan.timeline import fill_buckets
from omnizen.simulate.cluster import Cluster, Job, Law, Reduction
from omnizen.simulate.network import Network
from omnizen.simulate.phases import Fixed, Meet, Phase, Ring
from omnizen.types import Sparsity

BACKWARD_SHARE = 2 / 3
"""Of computing, where it was not measured."""
STEADY = 0.02
"""Times that vary less count as constant."""


def cluster_of(facts: Facts) -> Cluster:
    """Make the cluster that was measured.

    Each worker's seconds a sample are those at the batch that it works on in a step.
    """
    size, samples = facts.world_size, samples_of(facts)
    # Two batches tell what a step costs beside its samples.
    half = max(1, samples // 2)
    whole_s, half_s = seconds_of(facts, [samples] * size), seconds_of(facts, [half] * size)
    sample_s = (whole_s - half_s) / (samples - half) if samples > half else whole_s
    fixed_s = np.maximum(0.0, whole_s - samples * sample_s)
    variation = measured_variation(facts)
    law: Law = "lognormal" if variation > STEADY else "constant"
    return Cluster(network_of(facts), np.maximum(sample_s, 1e-12), fixed_s, law, variation)


def samples_of(facts: Facts) -> int:
    """Return the samples that a rank works through in a step; 1 where that was not measured."""
    return facts.step.samples if facts.step and facts.step.samples else 1


def seconds_of(facts: Facts, counts: Sequence[int]) -> Floats:
    """Return seconds ``[n]`` in which each rank computes so many samples; 0 where nothing was measured."""
    devices, step = {device.rank: device for device in facts.devices}, facts.step
    out = np.zeros(facts.world_size)
    for rank, count in enumerate(counts):
        device = devices.get(rank)
        if device is not None and device.samples_per_s:
            out[rank] = compute_seconds(device, count) if count else 0.0
        elif step is not None:
            out[rank] = step.compute_s * count / step.samples if step.samples else step.compute_s
    return out


def network_of(facts: Facts) -> Network:
    """Return the links that were measured, pair by pair, without what disturbed single pairs."""
    size = facts.world_size
    bandwidth, latency = np.full((size, size), np.inf), np.zeros((size, size))
    rate = {(link.source, link.dest): link.bandwidth_bytes_per_s for link in facts.links}
    if len(rate) == size * (size - 1):
        rate = without_noise(rate, size)
    for link in facts.links:
        bandwidth[link.source, link.dest] = rate[link.source, link.dest]
        latency[link.source, link.dest] = link.latency_s
    return Network.of_pairs(bandwidth, latency)


def job_of(facts: Facts, plan: Plan, members: Sequence[int] | None = None) -> Job:
    """Return what the model asks of the links in a step by a plan.

    Args:
        members: ranks that reduce together; all of them unless given.
    """
    ranks = list(range(facts.world_size)) if members is None else list(members)
    links = [link for link in facts.links if link.source in ranks and link.dest in ranks]
    number = {rank: i for i, rank in enumerate(ranks)}
    inside = [k.model_copy(update={"source": number[k.source], "dest": number[k.dest]}) for k in links]
    meetings = facts.meetings if len(ranks) == facts.world_size else None
    model, rates = LinkModel.of(inside, len(ranks), meetings), slowest_rates(facts.devices)
    reductions = buckets(facts, plan, model)
    for gradient in facts.gradients:
        if not _bucketed(gradient, plan):
            cost = predict(plan.scheme(gradient.name), gradient.sparsity(), len(ranks), model, rates)
            reductions.append(Reduction([Fixed(cost.wire_s + cost.latency_s)], 1.0, cost.cpu_s))
    step = facts.step
    share = step.backward_s / step.compute_s if step and step.compute_s else BACKWARD_SHARE
    control: list[Phase] = [Meet(8.0)]
    return Job(reductions, float(sum(g.nbytes for g in facts.gradients)), share, control)


def update_bytes(facts: Facts, members: int, size: int | None = None) -> float:
    """Return the bytes that a group of so many ranks pushes, or pulls, in an update, on average of both.

    Dense gradients go whole; of tables, the rows that the group touched go there, and those that anybody touched
    come back.

    Args:
        members: ranks of a group.
        size: ranks of all groups; those of the facts unless given.
    """
    total = 0.0
    for gradient in facts.gradients:
        pattern = gradient.sparsity()
        rows = (pattern.union_rows(members) + pattern.union_rows(size or facts.world_size)) / 2
        by_row = rows * (pattern.width * pattern.itemsize + 4)
        total += gradient.nbytes if gradient.kind == "dense" else min(float(gradient.nbytes), by_row)
    return total


def _bucketed(gradient: GradientFacts, plan: Plan) -> bool:
    return gradient.kind == "dense" and plan.scheme(gradient.name) in BUCKETED


def buckets(facts: Facts, plan: Plan, model: LinkModel) -> list[Reduction]:
    """Return the reductions of dense gradients, which travel in buckets."""
    dense = [g for g in facts.gradients if _bucketed(g, plan)]
    sizes = [g.nbytes for g in dense]
    rates, total, done = slowest_rates(facts.devices), sum(sizes), 0
    out: list[Reduction] = []
    for bucket in fill_buckets(sizes, plan.bucket_bytes):
        nbytes = sum(sizes[i] for i in bucket)
        done += nbytes
        known = [share for i in bucket if (share := dense[i].ready) is not None]
        ready = max(known) if len(known) == len(bucket) else done / total
        itemsize, scheme = ITEMSIZES[dense[bucket[0]].dtype], plan.scheme(dense[bucket[0]].name)
        cost = predict(scheme, Sparsity(nbytes // itemsize, 1, 1.0, itemsize=itemsize), model.size, model, rates)
        phase: Phase = Ring(nbytes) if scheme == "dense" else Fixed(cost.wire_s + cost.latency_s)
        out.append(Reduction([phase], max([ready, *(r.ready for r in out[-1:])]), cost.cpu_s))
    return out
