"""Compute groups: iteration times and staleness that queueing theory knows, and what links do to them."""

import time

import numpy as np
import pytest

from omnizen.errors import UserError
from omnizen.simulate.cluster import Cluster, Job, Reduction
from omnizen.simulate.grouped import grouped
from omnizen.simulate.local import local_steps
from omnizen.simulate.network import Network
from omnizen.simulate.phases import Meet, Ring, Swap
from omnizen.simulate.synchronous import synchronous

FAST = 1e18


def one_server(groups, work_s, serve_s, **law):
    """Groups of one worker each, a server that takes ``serve_s`` for each of them."""
    cluster = Cluster(Network.uniform(groups, FAST), np.full(groups, work_s), **law)
    job = Job([], model_bytes=1.0, update_bytes_per_s=1 / groups / serve_s)
    return job, cluster, groups, np.ones(groups)


@pytest.mark.parametrize(("groups", "expected"), [(1, 4.0), (2, 2.0), (4, 1.0), (8, 1.0)])
def test_with_constant_times_the_formula_of_hardware_efficiency_is_exact(groups, expected):
    assert grouped(*one_server(groups, 3.0, 1.0), updates=200).update_s == pytest.approx(expected, rel=0.02)


def test_with_exponential_times_the_knee_is_rounder():
    # Mean-value analysis with one exponential server says 1.26; the server here is constant, which is a bit better.
    took = grouped(*one_server(4, 3.0, 1.0, law="exponential"), updates=4000).update_s
    assert 1.1 < took < 1.26


def test_staleness_is_geometric_with_exponential_times_and_constant_with_equal_ones():
    exponential = grouped(*one_server(4, 1.0, 1e-9, law="exponential"), updates=6000).staleness
    shares = np.array(exponential) / sum(exponential)
    assert shares[:4] == pytest.approx([0.25 * 0.75**i for i in range(4)], abs=0.025)
    equal = grouped(*one_server(4, 1.0, 1e-9), updates=400).staleness
    assert equal[3] == sum(equal)


def test_a_slow_worker_does_not_hold_the_others_up():
    sample_s = np.array([0.01, 0.01, 0.01, 0.03])
    cluster, batch = Cluster(Network.uniform(4, FAST), sample_s), np.full(4, 10)
    job = Job([Reduction([Ring(1e3)])], model_bytes=1e3)
    alone = grouped(job, cluster, 4, batch, updates=400)
    together = synchronous(job, cluster, batch)
    assert together.samples_per_s == pytest.approx(4 * 10 / 0.3, rel=1e-3)
    assert alone.samples_per_s == pytest.approx(sum(1 / sample_s), rel=0.03)
    assert together.busy == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0], rel=1e-3)
    assert alone.busy == pytest.approx(np.ones(4), abs=0.05)


def test_one_group_is_synchronous_training_with_a_push_and_a_pull_of_the_model():
    cluster, batch = Cluster(Network.uniform(4, 1e6), np.full(4, 0.01)), np.full(4, 10)
    job = Job([Reduction([Ring(1e6)])], model_bytes=1e6)
    # Each member pushes its quarter to the server of that quarter, itself; then all gather three quarters.
    expected = synchronous(job, cluster, batch).update_s + 0.75
    assert grouped(job, cluster, 1, batch).update_s == pytest.approx(expected, rel=1e-6)


def test_links_bound_what_groups_of_one_can_do():
    cluster, batch = Cluster(Network.uniform(8, 1e6), np.full(8, 1e-4)), np.ones(8)
    out = grouped(Job([], model_bytes=1e6), cluster, 8, batch, updates=400)
    # Each cycle brings 7/8 of the model to each group and takes as much away, and servers do the same.
    assert out.update_s * 8 == pytest.approx(2 * 7 / 8, rel=0.05)


def test_members_may_be_named_and_must_be_all():
    cluster, batch = Cluster(Network.uniform(4, FAST), np.array([1.0, 3.0, 1.0, 3.0])), np.ones(4)
    alike = grouped(Job([], 1.0), cluster, [[0, 2], [1, 3]], batch, updates=400)
    mixed = grouped(Job([], 1.0), cluster, 2, batch, updates=400)
    assert alike.samples_per_s == pytest.approx(2 + 2 / 3, rel=0.02)
    assert mixed.samples_per_s == pytest.approx(4 / 3, rel=0.02)
    for wrong in (0, 5, [[0, 1], [2]], [[0, 1, 2, 3], []]):
        with pytest.raises(UserError, match="groups"):
            grouped(Job([], 1.0), cluster, wrong, batch)


def test_four_thousand_workers_of_all_kinds():
    rng, n = np.random.default_rng(0), 4096
    net = Network(rng.uniform(1e8, 1e9, n), rng.uniform(1e8, 1e9, n), np.full(n, 1e-4))
    cluster, batch = Cluster(net, rng.uniform(0.01, 0.03, n)), np.full(n, 32)
    table = Reduction([Meet(16), Swap(2e7 / n), Meet(16), Swap(1e8 / n)])
    job = Job([Reduction([Ring(1e7)], ready=0.5), table], model_bytes=2e7)
    began = time.process_time()
    sync = synchronous(job, cluster, batch, steps=1)
    many = grouped(job, cluster, 64, batch, updates=128)
    local = local_steps(job, cluster, batch, np.full(n, 8))
    assert time.process_time() - began < 30  # seconds of a machine with nothing else to do are much fewer
    assert sync.samples_per_s < many.samples_per_s < float((1 / cluster.sample_s).sum())
    assert 0 < local.samples_per_s < float((1 / cluster.sample_s).sum())


def test_what_cannot_be_is_refused():
    net = Network.uniform(2, 1e6)
    with pytest.raises(UserError, match="lognormal"):
        Cluster(net, np.ones(2), law="lognormall")
    with pytest.raises(UserError, match="links"):
        Cluster(net, np.ones(3))
    with pytest.raises(UserError, match="batch"):
        synchronous(Job([], 1.0), Cluster(net, np.ones(2)), np.zeros(2))
    with pytest.raises(UserError, match="positive"):
        Network.uniform(2, 0.0)
