"""Local steps: each worker takes its own number of them, then all average their parameters."""

from __future__ import annotations

import numpy as np

from omnizen.comm.links import Floats
from omnizen.simulate.cluster import Cluster, Job, Outcome, checked_batch
from omnizen.simulate.phases import Ring


def local_steps(
    job: Job, cluster: Cluster, batch: Floats, every: Floats, *, rounds: int = 3, seed: int = 0
) -> Outcome:
    """Let worker r take ``every[r]`` steps alone between two averages of all parameters.

    Nothing overlaps with the average, which is an all-reduce in a ring.

    Args:
        batch: ``[n]``, samples of each worker in a step.
        every: ``[n]``, steps of each worker in a round.
        rounds: that are counted.
        seed: of random work times.
    """
    batch, every = checked_batch(batch, cluster), checked_batch(every, cluster).round()
    mean_s, rng = cluster.mean_s(batch), np.random.default_rng(seed)
    now, computed = np.zeros(cluster.size), np.zeros(cluster.size)
    for _ in range(rounds):
        if cluster.law == "constant":
            compute_s = every * mean_s
        else:
            compute_s = np.zeros(cluster.size)
            for taken in range(int(every.max())):
                compute_s += np.where(taken < every, cluster.draw(mean_s, rng), 0.0)
        computed += compute_s
        now = now + compute_s
        if cluster.size > 1:
            for phase in job.control:
                now = phase.run(now, cluster.network)
            now = Ring(job.model_bytes).run(now, cluster.network)
    seconds = float(now.max())
    samples = float((batch * every).sum()) * rounds
    return Outcome(seconds / rounds, samples / seconds, rounds, computed / seconds, [rounds])
