import pytest
import torch

from omnizen.comm.faults import Delay, Drop, Dropped, Faults, Faulty, Slow
from omnizen.comm.links import Links
from omnizen.comm.simulated import simulate_ranks
from omnizen.comm.threads import run_ranks
from omnizen.errors import PeerLost, UserError


def test_a_dropped_rank_is_lost_to_the_others_at_that_step() -> None:
    faults = Faults(Drop(rank=1, step=2))

    def body(comm):
        try:
            for comm.step in range(4):
                comm.all_reduce(torch.ones(1)).wait()
        except Dropped:
            return "dropped"
        except PeerLost as error:
            return error.peer, error.step
        return "went on"

    assert run_ranks(3, body, wrap=lambda comm: Faulty(comm, faults)) == [(1, 2), "dropped", (1, 2)]
    assert faults.count(Drop(1, 2)) == 1


def test_a_rank_can_be_dropped_in_the_middle_of_a_step() -> None:
    faults = Faults(Drop(rank=1, step=1, call=2))
    done = []

    def body(comm):
        for comm.step in range(3):
            for call in range(4):
                comm.barrier()
                if comm.rank == 1:
                    done.append((comm.step, call))

    with pytest.raises(Dropped):
        run_ranks(2, body, wrap=lambda comm: Faulty(comm, faults))
    assert done == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]


def test_faults_reach_sub_groups() -> None:
    faults = Faults(Drop(rank=2, step=1))

    def body(comm):
        group = comm.sub([0, 2], "ends")
        comm.step = 1
        if group is None:
            return None
        with pytest.raises((Dropped, PeerLost)) as caught:
            group.barrier()
        return type(caught.value)

    assert run_ranks(3, body, wrap=lambda comm: Faulty(comm, faults)) == [PeerLost, None, Dropped]


def test_delays_and_slow_links_move_virtual_clocks() -> None:
    faults = Faults(Delay(rank=0, step=1, seconds=5.0), Slow(source=0, dest=1, factor=4.0, step=2))

    def body(comm):
        at = []
        for comm.step in range(3):
            comm.all_to_all([[torch.zeros(1000)], [torch.zeros(1000)]]).wait()
            at.append(comm.now_s)
        return at

    links = Links.uniform(2, bandwidth_bytes_per_s=1000.0)
    done = simulate_ranks(2, body, links=links, wrap=lambda comm: Faulty(comm, faults))
    for at in done.results:
        header_s = 0.008
        assert at == pytest.approx([4 + header_s, 13 + 2 * header_s, 29 + 2 * header_s + 4 * header_s])
    assert [faults.count(f) for f in faults.script] == [1, 1]


def test_a_slow_link_needs_simulated_links() -> None:
    faults = Faults(Slow(source=0, dest=1, factor=2.0, step=0))

    def body(comm):
        comm.step = 0
        comm.barrier()

    with pytest.raises(UserError, match="simulated"):
        run_ranks(2, body, wrap=lambda comm: Faulty(comm, faults))


def test_only_scripted_faults_can_be_counted() -> None:
    with pytest.raises(UserError, match="not in the script"):
        Faults().count(Drop(0, 0))
