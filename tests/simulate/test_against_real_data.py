"""Simulated strategies against the same ones with real tensors over simulated links."""

import numpy as np
import pytest
import torch

from omnizen import catalog
from omnizen.comm.links import Links, PairLink, RankLink
from omnizen.comm.simulated import simulate_ranks
from omnizen.simulate.cluster import Cluster, Job, Reduction
from omnizen.simulate.local import local_steps
from omnizen.simulate.network import Network
from omnizen.simulate.phases import Doubling, Fixed, Meet, Ring, Swap
from omnizen.simulate.synchronous import synchronous
from omnizen.types import Sparse, Step

HEADER = 8


def uneven(size):
    """Links of different rates and latencies, one pair slower than its ends."""
    ranks = [
        RankLink(up_bytes_per_s=1e6 * (1 + r % 3), down_bytes_per_s=1e6 * (1 + r % 2), latency_s=1e-4 * (1 + r % 4))
        for r in range(size)
    ]
    pair = {(0, size - 1): PairLink(bandwidth_bytes_per_s=3e5, latency_s=2e-3)} if size > 2 else {}
    return Links(ranks, pair)


def rows(rank, count=300, width=4):
    generator = torch.Generator().manual_seed(rank)
    indices = torch.randperm(4_000, generator=generator)[:count].sort().values
    return Sparse(indices, torch.ones(count, width), 4_000)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_an_all_reduce_and_an_all_gather_take_as_long_as_with_data(size):
    links, starts = uneven(size), [0.01 * (r % 3) for r in range(size)]

    def reduce(comm):
        comm.compute(starts[comm.rank])
        comm.all_reduce(torch.zeros(10_000)).wait()

    def gather(comm):
        comm.compute(starts[comm.rank])
        comm.all_gather([torch.zeros(500 * (comm.rank + 1))]).wait()

    net, start = Network.of(links), np.array(starts)
    ring = Ring(40_000).run(start, net)
    assert ring == pytest.approx(simulate_ranks(size, reduce, links=links).clocks_s)
    met = Meet(HEADER).run(start, net)
    gathered = Swap(2_000.0 * np.arange(1, size + 1)).run(met, net)
    assert gathered == pytest.approx(simulate_ranks(size, gather, links=links).clocks_s)


def test_meeting_by_ranks_is_meeting_by_pairs():
    links = Links(uneven(7).ranks)
    by_ranks = Network.of(links)
    by_pairs = Network.of_pairs(*links.matrices())
    start = np.linspace(0, 1e-3, 7)[::-1].copy()
    assert Meet(800).run(start, by_ranks) == pytest.approx(Meet(800).run(start, by_pairs))


@pytest.mark.parametrize("size", [2, 4, 8, 5])
def test_recursive_doubling_takes_as_long_as_with_data(size):
    links = Links.uniform(size, bandwidth_bytes_per_s=1e6, latency_s=1e-3)

    def body(comm):
        reducer, x = catalog.reducer("sparcml"), rows(0)  # the same rows everywhere: sums do not grow
        reducer.start(x, reducer.init(x), comm, Step(0, name="x")).wait()

    nbytes = 300 * (4 + 4 * 4)
    ended = Doubling([nbytes] * 4).run(np.zeros(size), Network.of(links))
    assert ended.max() == pytest.approx(max(simulate_ranks(size, body, links=links).clocks_s), rel=0.02)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_synchronous_step_with_overlap_takes_as_long_as_with_data(size):
    links = Links.uniform(size, bandwidth_bytes_per_s=2e6, latency_s=1e-3)
    compute_s = [0.1 * (1 + r % 2) for r in range(size)]
    steps = 3

    def body(comm):
        reducer, x = catalog.reducer("agsparse"), rows(comm.rank)
        for n in range(steps):
            mine = compute_s[comm.rank]
            comm.compute(0.75 * mine)  # forward, and half of backward
            bucket = comm.all_reduce(torch.zeros(25_000))
            comm.compute(0.25 * mine)
            table = reducer.start(x, reducer.init(x), comm, Step(n, name="x"))
            bucket.wait()
            table.wait()

    took = max(simulate_ranks(size, body, links=links).clocks_s) / steps
    job = Job(
        [Reduction([Ring(100_000)], ready=0.5), Reduction([Meet(2 * HEADER), Swap(300 * 20.0)])],
        model_bytes=1e6,
        backward_share=0.5,
    )
    cluster = Cluster(Network.of(links), np.array(compute_s))
    assert synchronous(job, cluster, np.ones(size), steps=steps).update_s == pytest.approx(took, rel=0.02)


@pytest.mark.parametrize("size", [2, 4])
def test_rounds_of_local_steps_take_as_long_as_with_data(size):
    links = uneven(size)
    every = [2 + r for r in range(size)]

    def body(comm):
        for _ in range(2):
            comm.compute(0.05 * every[comm.rank])
            comm.all_reduce(torch.zeros(50_000)).wait()

    took = max(simulate_ranks(size, body, links=links).clocks_s) / 2
    cluster = Cluster(Network.of(links), np.full(size, 0.05))
    out = local_steps(Job([], model_bytes=200_000), cluster, np.ones(size), np.array(every), rounds=2)
    assert out.update_s == pytest.approx(took)
    assert out.samples_per_s == pytest.approx(sum(every) / took)


def test_a_known_time_starts_when_the_last_is_there():
    net = Network.uniform(3, 1e6)
    assert Fixed(2.0).run(np.array([0.0, 1.0, 0.5]), net) == pytest.approx([3.0] * 3)
