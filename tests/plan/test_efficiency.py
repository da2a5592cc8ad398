"""Seconds between updates: the verified tables, a fluid simulation of sharded servers, and facts of uneven jobs."""

import numpy as np
import pytest

from omnizen.errors import UserError
from omnizen.measure.facts import Facts
from omnizen.plan import efficiency
from omnizen.plan.efficiency import compute_seconds, of_layout, one_server, saturation, slowest
from omnizen.plan.layouts import Layout, by_speed, even
from tests.plan.builders import MBIT, job

BATCH = 64


def rated(size, bytes_per_s, rates, *, spread=0.0, latency_s=0.0, slow=None):
    """A job whose devices work so many samples a second, whatever the batch."""
    facts = job(size, bytes_per_s, latency_s=latency_s, slow=slow)
    devices = [
        d.model_copy(update={"samples_per_s": {"64": r}, "samples_per_s_spread": {"64": spread}})
        for d, r in zip(facts.devices, rates, strict=True)
    ]
    return facts.model_copy(update={"devices": devices})


def played(facts, layout, nbytes, variation, updates=6_000, seed=0):
    """Seconds between updates when groups compute, then share links fairly: a simulation of flows."""
    rng = np.random.default_rng(seed)
    network = efficiency._Network.of(facts)
    groups = layout.groups
    demand = np.array([network.demand_s(g, layout.size, nbytes, alone=len(groups) == 1) for g in groups])
    alone_s = demand.max(axis=1)
    pulled_s = [
        network.asked(len(g), layout.size, nbytes) * max(network.into[r] for r in g) if len(groups) > 1 else 0.0
        for g in groups
    ]
    share = demand / alone_s[:, None]
    devices = {d.rank: d for d in facts.devices}
    own = [[compute_seconds(devices[r], layout.samples[r]) for r in g] for g in groups]

    def work(j):
        fixed, drawn = (1 - variation), variation
        return pulled_s[j] + max(s * fixed + (rng.exponential(s * drawn) if drawn else 0.0) for s in own[j])

    left = np.array([work(j) * (j + 1) / len(groups) if variation == 0 else work(j) for j in range(len(groups))])
    sending = np.zeros(len(groups), dtype=bool)
    now, done, since = 0.0, 0, 0.0
    while done < updates:
        load = np.maximum(share[sending].sum(axis=0), 1.0)
        speed = np.ones(len(groups))
        for j in np.flatnonzero(sending):
            speed[j] = 1 / load[share[j] > 0].max()
        step = (left / speed).min()
        j = int((left / speed).argmin())
        left -= step * speed
        now += step
        if sending[j]:
            done += 1
            since = now if done == updates // 10 else since
            left[j], sending[j] = work(j), False
        else:
            left[j], sending[j] = alone_s[j], True
    return (now - since) / (updates - updates // 10)


@pytest.mark.parametrize(("groups", "seconds"), [(1, 4.0), (2, 2.0), (4, 1.0), (8, 1.0)])
def test_one_server_with_constant_times(groups, seconds):
    # As the table has it: each group's own work takes 3 whatever its size.
    assert one_server(groups, groups, compute_s=3.0, copy_s=0.0, server_s=1.0) == pytest.approx(seconds)


@pytest.mark.parametrize(("groups", "ratio"), [(1, 1.0), (2, 1.06), (4, 1.26), (8, 1.01), (16, 1.0)])
def test_one_server_with_exponential_times(groups, ratio):
    timing = {"compute_s": 3.0, "copy_s": 0.0, "server_s": 1.0}
    exponential = one_server(groups, groups, **timing, variation=1.0)
    assert exponential / one_server(groups, groups, **timing) == pytest.approx(ratio, rel=0.02)


def test_copies_of_the_weights_limit_whatever_the_groups():
    # An update takes k = 8 / g copies through one link, 0.5 each; nothing else is as slow.
    timing = {"compute_s": 4.0, "copy_s": 0.5, "server_s": 0.1}
    assert [one_server(8, g, **timing) for g in (1, 2, 4)] == pytest.approx([4.1, 2.0, 1.0])
    assert one_server(8, 2, compute_s=4.0, copy_s=2.0, server_s=0.1) == pytest.approx(8.0)


def test_the_slowest_of_a_group():
    assert slowest([2.0] * 4, 1.0) == pytest.approx(2 * (1 + 1 / 2 + 1 / 3 + 1 / 4))
    assert slowest([2.0] * 4, 0.1) == pytest.approx(2 * (1 + 0.1 * (1 / 2 + 1 / 3 + 1 / 4)))
    assert slowest([1.0, 3.0], 0.0) == 3.0
    # max of two exponentials: a + b - 1 / (1/a + 1/b)
    assert slowest([1.0, 3.0], 1.0) == pytest.approx(4 - 0.75, rel=1e-3)
    rng = np.random.default_rng(0)
    drawn = np.maximum.reduce([m * (0.7 + rng.exponential(0.3, 100_000)) for m in (1.0, 1.2, 1.3)])
    assert slowest([1.0, 1.2, 1.3], 0.3) == pytest.approx(drawn.mean(), rel=5e-3)


def test_seconds_by_samples():
    device = rated(2, MBIT, [100.0, 100.0]).devices[0]
    assert compute_seconds(device, 32) == pytest.approx(0.32)
    two = device.model_copy(update={"samples_per_s": {"10": 50.0, "20": 80.0}})  # 0.2 s and 0.25 s
    assert [compute_seconds(two, n) for n in (10, 14, 20, 40)] == pytest.approx([0.2, 0.22, 0.25, 0.35])
    bare = device.model_copy(update={"samples_per_s": {}})
    assert compute_seconds(bare, 64, job(2)) == pytest.approx(0.5)
    with pytest.raises(UserError, match="no rate of rank 0"):
        compute_seconds(bare, 64)


@pytest.mark.parametrize(("groups", "nbytes"), [(1, 4_000_000), (2, 400_000), (2, 4_000_000), (8, 1_000_000)])
@pytest.mark.parametrize("variation", [0.0, 0.3, 1.0])
def test_sharded_servers_as_simulated(groups, nbytes, variation):
    facts = rated(8, 100 * MBIT, [100.0] * 8)
    layout = even(8, groups, BATCH)
    predicted = of_layout(facts, layout, nbytes=nbytes, variation=variation).update_s
    assert predicted == pytest.approx(played(facts, layout, nbytes, variation, updates=800), rel=0.1)


@pytest.mark.parametrize("groups", [2, 3, 4])
@pytest.mark.parametrize("variation", [0.0, 0.3])
def test_unlike_workers_as_simulated(groups, variation):
    rates = [120.0, 100.0, 80.0, 30.0]
    facts = rated(4, 100 * MBIT, rates)
    layout = by_speed(rates, groups, BATCH)
    predicted = of_layout(facts, layout, nbytes=1_500_000, variation=variation)
    assert predicted.update_s == pytest.approx(played(facts, layout, 1_500_000, variation, updates=800), rel=0.1)
    assert sum(1 / s for s in predicted.cycle_s) == pytest.approx(1 / predicted.update_s)


def test_synchronous_training_is_compute_and_a_ring():
    facts = rated(4, 1e6, [100.0, 100.0, 100.0, 25.0], latency_s=1e-3)
    even_share = of_layout(facts, even(4, 1, BATCH), nbytes=1_000_000)
    assert even_share.update_s == pytest.approx(16 / 25 + 2 * 3 / 4 + 6e-3)
    fair = of_layout(facts, by_speed([100.0, 100.0, 100.0, 25.0], 1, BATCH), nbytes=1_000_000)
    assert fair.update_s == pytest.approx(20 / 100 + 2 * 3 / 4 + 6e-3)
    assert even_share.staleness == (0.0,)


def test_staleness_of_a_slow_group_is_higher():
    facts = rated(4, 1e9, [100.0, 100.0, 100.0, 25.0])
    found = of_layout(facts, even(4, 4, BATCH), nbytes=1_000)
    assert found.staleness == pytest.approx((2.25, 2.25, 2.25, 12.0), rel=0.01)
    assert found.bottleneck.startswith("compute")


def test_a_slow_link_is_named():
    slow = {pair: 1e5 for r in range(3) for pair in ((3, r), (r, 3))}
    facts = rated(4, 1e7, [1_000.0] * 4, slow=slow)
    found = of_layout(facts, even(4, 4, BATCH), nbytes=1_000_000)
    assert "rank 3" in found.bottleneck
    assert found.update_s >= 0.75 * 1_000_000 / 4 / 1e5


def test_more_groups_help_until_links_are_full():
    compute_bound = rated(8, 1e9, [100.0] * 8)
    wire_bound = rated(8, 1e6, [1_000.0] * 8)

    def updates(facts):
        return {g: of_layout(facts, even(8, g, BATCH), nbytes=1_000_000).update_s for g in (1, 2, 4, 8)}

    # The same batch a group, so an update costs the same compute in sum: no more groups are needed for it.
    assert saturation(updates(compute_bound)) == 1
    # Eight groups make eight updates of what the links carry for one by all.
    found = updates(wire_bound)
    assert found[1] / found[8] == pytest.approx(8, rel=0.05)
    assert saturation(found) == 8
    assert saturation({1: 1.0, 2: 0.8, 4: 0.75}) == 2
    assert saturation({1: 1.0}) == 1


def test_variation_is_read_from_the_spread_of_rates():
    facts = rated(2, 1e6, [100.0, 100.0], spread=0.168)
    assert efficiency.measured_variation(facts) == pytest.approx(0.1)
    assert efficiency.measured_variation(job(2)) == 0.0


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (rated(2, 1e6, [1.0, 1.0]), "of 2 ranks"),
        (Facts(torch_version="2", world_size=4), "no device of rank 0"),
        (rated(4, 1e6, [1.0] * 4).model_copy(update={"links": []}), "no link from rank 0 to rank 1"),
    ],
)
def test_facts_that_do_not_do(facts, says):
    with pytest.raises(UserError, match=says):
        of_layout(facts, even(4, 2, 32))


def test_one_rank():
    facts = rated(1, 1e6, [100.0])
    assert of_layout(facts, Layout(((0,),), (32,))).update_s == pytest.approx(0.32)
