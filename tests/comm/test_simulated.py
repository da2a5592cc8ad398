import pytest
import torch

from omnizen.comm.links import Links, PairLink, RankLink
from omnizen.comm.simulated import simulate_ranks
from omnizen.errors import PeerLost, UserError

RATE = 1e6
LATENCY = 1e-3


def uniform(size):
    return Links.uniform(size, bandwidth_bytes_per_s=RATE, latency_s=LATENCY)


def test_all_reduce_takes_the_time_of_a_ring() -> None:
    done = simulate_ranks(4, lambda comm: comm.all_reduce(torch.ones(25_000)).wait().sum(), links=uniform(4))
    assert [float(x) for x in done.results] == [100_000.0] * 4
    assert done.clocks_s == pytest.approx([6 * (0.025 + LATENCY)] * 4)


def test_all_to_all_takes_one_round_of_sizes_and_the_scheduled_rounds() -> None:
    done = simulate_ranks(4, lambda comm: comm.all_to_all([[torch.ones(250)]] * 4).wait(), links=uniform(4))
    sizes_s = LATENCY + 3 * 8 / RATE
    assert done.clocks_s == pytest.approx([sizes_s + 3 * (0.001 + LATENCY)] * 4)


def test_computation_between_call_and_wait_overlaps() -> None:
    def body(comm):
        pending = comm.all_gather([torch.ones(25_000)])
        comm.compute(0.05)
        pending.wait()
        hidden_s = comm.now_s
        pending = comm.all_gather([torch.ones(25_000)])
        comm.compute(1.0)
        pending.wait()
        return hidden_s, comm.now_s - hidden_s

    hidden_s, second_s = simulate_ranks(2, body, links=uniform(2)).results[0]
    assert hidden_s == pytest.approx(0.1 + 8 / RATE + 2 * LATENCY)
    assert second_s == pytest.approx(1.0)


def test_calls_in_flight_follow_one_another_whoever_waits_first() -> None:
    def body(comm):
        first, second = comm.all_gather([torch.ones(25_000)]), comm.all_gather([torch.ones(50_000)])
        for pending in (second, first) if comm.rank else (first, second):
            pending.wait()
        return comm.now_s

    one_s, two_s = 0.1 + 8 / RATE + 2 * LATENCY, 0.2 + 8 / RATE + 2 * LATENCY
    assert simulate_ranks(2, body, links=uniform(2)).results == pytest.approx([one_s + two_s] * 2)


def test_the_slowest_link_sets_the_pace_of_a_ring_but_not_of_an_exchange() -> None:
    fast, slow = (RankLink(up_bytes_per_s=r, down_bytes_per_s=r) for r in (1e6, 1e5))

    def body(comm):
        comm.all_reduce(torch.ones(3000)).wait()
        ring_s = comm.now_s
        if comm.rank == 0:
            comm.exchange({1: [torch.ones(2500)]}, [], []).wait()
        elif comm.rank == 1:
            comm.exchange({}, [0], [torch.ones(1)]).wait()
        return ring_s, comm.now_s - ring_s

    results = simulate_ranks(3, body, links=Links([fast, fast, slow])).results
    assert [r[0] for r in results] == pytest.approx([4 * 0.04] * 3)
    assert [r[1] for r in results] == pytest.approx([0.010008, 0.010008, 0.0])


def test_pairs_override_what_the_ranks_links_give() -> None:
    links = Links(uniform(3).ranks, {(0, 1): PairLink(bandwidth_bytes_per_s=10.0, latency_s=2.0)})
    bandwidth, latency = links.matrices()
    assert (bandwidth[0, 1], latency[0, 1], bandwidth[1, 0]) == (10.0, 2.0, RATE)


def test_groups_work_and_the_same_name_makes_another_group() -> None:
    def body(comm):
        totals = []
        for _ in range(2):
            group = comm.sub([2, 0], "ends")
            if group is not None:
                totals.append(int(group.all_reduce(torch.tensor([comm.rank + 1])).wait()))
        return totals

    assert simulate_ranks(3, body, links=uniform(3)).results == [[4, 4], [], [4, 4]]


def test_hundreds_of_ranks_and_the_same_clocks_each_time() -> None:
    def body(comm):
        comm.compute(0.001 * (comm.rank % 7))
        comm.all_to_all([[torch.full((1 + (comm.rank + dest) % 5,), 1.0)] for dest in range(comm.size)]).wait()
        return float(comm.all_reduce(torch.ones(10)).wait()[0])

    first, second = (simulate_ranks(120, body, links=uniform(120)) for _ in range(2))
    assert first.results == [120.0] * 120
    assert first.clocks_s == second.clocks_s


def test_a_rank_that_ends_is_lost() -> None:
    def body(comm):
        comm.step = 3
        if comm.rank == 0:
            return None
        with pytest.raises(PeerLost, match="lost rank 0 at step 3"):
            comm.all_reduce(torch.ones(2)).wait()
        return "told"

    assert simulate_ranks(3, body, links=uniform(3)).results == [None, "told", "told"]


def test_wrong_links_are_refused() -> None:
    with pytest.raises(UserError, match="positive rates"):
        Links.uniform(2, bandwidth_bytes_per_s=0.0)
    with pytest.raises(UserError, match="each of 3 ranks, got 2"):
        simulate_ranks(3, lambda comm: None, links=uniform(2))
