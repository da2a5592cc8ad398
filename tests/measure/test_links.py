import pytest

from omnizen.comm.links import Links, PairLink, RankLink
from omnizen.comm.simulated import simulate_ranks
from omnizen.comm.threads import run_ranks
from omnizen.measure.links import matchings, measure_links, measure_meetings


@pytest.mark.parametrize("size", range(1, 12))
def test_matchings_hold_each_pair_once_and_no_rank_twice(size):
    rounds = matchings(size)
    for pairs in rounds:
        ranks = [r for pair in pairs for r in pair]
        assert len(ranks) == len(set(ranks))
    every = [pair for pairs in rounds for pair in pairs]
    assert sorted(every) == [(a, b) for a in range(size) for b in range(a + 1, size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_ranks_get_the_same_facts_about_every_direction(size):
    results = run_ranks(size, lambda comm: measure_links(comm, budget_s=0.2))
    assert all(r == results[0] for r in results)
    pairs = [(link.source, link.dest) for link in results[0]]
    assert pairs == [(a, b) for a in range(size) for b in range(size) if a != b]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_meetings_take_their_rounds_and_all_ranks_hear_the_same(size):
    links = Links.uniform(size, bandwidth_bytes_per_s=1e9, latency_s=0.01)
    done = simulate_ranks(size, lambda comm: measure_meetings(comm, clock=lambda: comm.now_s), links=links)
    gather_s, sum_s = (0.01 * rounds for rounds in ((size, 2 * (size - 1)) if size > 1 else (0, 0)))
    for found in done.results:
        assert found == done.results[0]
        assert found.gather_s == pytest.approx(gather_s, rel=1e-3, abs=1e-9)
        assert found.sum_s == pytest.approx(sum_s, rel=1e-3, abs=1e-9)


def test_pairs_beyond_the_budget_are_marked_as_estimates():
    links = run_ranks(4, lambda comm: measure_links(comm, budget_s=0.0))[0]
    measured = {(link.source, link.dest) for link in links if not link.estimated}
    assert measured == {(0, 3), (3, 0), (1, 2), (2, 1), (0, 2), (2, 0), (1, 3), (3, 1)}
    assert all(link.bandwidth_bytes_per_s > 0 for link in links)


def measured_on(links, budget_s=60.0):
    size = len(links.ranks)
    done = simulate_ranks(size, lambda comm: measure_links(comm, budget_s, clock=lambda: comm.now_s), links=links)
    assert all(r == done.results[0] for r in done.results)
    return {(link.source, link.dest): link for link in done.results[0]}


def rank_link(up_mbit, down_mbit, latency_s):
    return RankLink(up_bytes_per_s=up_mbit * 125_000, down_bytes_per_s=down_mbit * 125_000, latency_s=latency_s)


MIXED = Links(
    [rank_link(100, 100, 1e-4), rank_link(1000, 100, 1e-3), rank_link(10, 50, 5e-3), rank_link(25, 1000, 2e-2)],
    {
        (0, 1): PairLink(bandwidth_bytes_per_s=1e6, latency_s=0.03),
        (1, 0): PairLink(bandwidth_bytes_per_s=3e6, latency_s=0.03),
    },
)


@pytest.mark.parametrize(
    "links",
    [
        Links.uniform(2, bandwidth_bytes_per_s=12.5e6, latency_s=3e-4),
        Links.uniform(5, bandwidth_bytes_per_s=125e6, latency_s=1e-3),
        Links.uniform(3, bandwidth_bytes_per_s=125e3, latency_s=5e-2),
        MIXED,
    ],
)
def test_simulated_links_are_measured_as_they_are(links):
    found = measured_on(links)
    bandwidth, latency = links.matrices()
    for (source, dest), link in found.items():
        assert not link.estimated
        assert link.bandwidth_bytes_per_s == pytest.approx(bandwidth[source, dest], rel=0.02)
        assert link.latency_s == pytest.approx(latency[source, dest], rel=0.02)


def test_estimates_follow_the_slower_end():
    links = Links([rank_link(100, 100, 1e-4)] * 5 + [rank_link(10, 100, 1e-4)])
    found = measured_on(links, budget_s=0.0)
    assert found[5, 0].bandwidth_bytes_per_s == pytest.approx(1.25e6, rel=0.02)
    estimates = {pair: link for pair, link in found.items() if link.estimated}
    assert estimates.keys() >= {(5, 1), (1, 5)}
    for (source, dest), link in estimates.items():
        assert link.bandwidth_bytes_per_s == pytest.approx(1.25e6 if source == 5 else 12.5e6, rel=0.02), (
            source,
            dest,
        )
