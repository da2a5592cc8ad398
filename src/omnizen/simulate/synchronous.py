"""Synchronous training: a wire per worker, reductions in order, backward going on meanwhile."""

from __future__ import annotations

import numpy as np

from omnizen.comm.links import Floats
from omnizen.simulate.cluster import Cluster, Job, Outcome, checked_batch
from omnizen.simulate.network import Network


def synchronous(job: Job, cluster: Cluster, batch: Floats, *, steps: int = 4, seed: int = 0) -> Outcome:
    """Let all workers average gradients in every step.

    Args:
        batch: ``[n]``, samples of each worker in a step.
        steps: after a first one, which does not count.
        seed: of random work times.

    Example:
        >>> from omnizen.simulate.cluster import Reduction
        >>> from omnizen.simulate.phases import Ring
        >>> cluster = Cluster(Network.uniform(4, 1e6), np.full(4, 0.01))
        >>> job = Job([Reduction([Ring(1e6)])], model_bytes=1e6)
        >>> round(synchronous(job, cluster, np.full(4, 10)).update_s, 3)
        1.6
    """
    batch = checked_batch(batch, cluster)
    mean_s, rng = cluster.mean_s(batch), np.random.default_rng(seed)
    now, computed = np.zeros(cluster.size), np.zeros(cluster.size)
    began_s = 0.0
    for step in range(steps + 1):
        compute_s = cluster.draw(mean_s, rng)
        now = reduce(job, now, compute_s, cluster.network)
        if step == 0:
            began_s = float(now.max())
        else:
            computed += compute_s
    seconds = float(now.max()) - began_s
    update_s = seconds / steps
    return Outcome(update_s, float(batch.sum()) / update_s, steps, computed / seconds, [steps])


def reduce(job: Job, start_s: Floats, compute_s: Floats, net: Network) -> Floats:
    """Return when each of the network's ranks has its averages, if it begins to compute at ``start_s``."""
    ended = start_s + compute_s
    if net.size == 1:
        return ended
    backward_s = compute_s * job.backward_share
    free = ended - backward_s
    for phase in job.control:
        free = phase.run(free, net)
    for reduction in sorted(job.reductions, key=lambda r: r.ready):
        free = np.maximum(free, ended - (1 - reduction.ready) * backward_s)
        for phase in reduction.phases:
            free = phase.run(free, net)
    return np.maximum(free, ended) + sum(reduction.cpu_s for reduction in job.reductions)
