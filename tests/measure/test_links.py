import pytest

from omnizen.comm.threads import run_ranks
from omnizen.measure.links import matchings, measure_links


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


def test_pairs_beyond_the_budget_are_marked_as_estimates():
    links = run_ranks(4, lambda comm: measure_links(comm, budget_s=0.0))[0]
    measured = {(link.source, link.dest) for link in links if not link.estimated}
    assert measured == {(0, 3), (3, 0), (1, 2), (2, 1)}
    assert all(link.bandwidth_bytes_per_s > 0 for link in links)
