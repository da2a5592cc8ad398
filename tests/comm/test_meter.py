import torch

from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks


def test_readings_subtract_and_name_world_ranks() -> None:
    def body(comm):
        comm.all_gather([torch.zeros(5)]).wait()
        before = comm.reading()
        group = comm.sub([0, 2], "ends")
        if group is not None:
            group.all_to_all([[torch.zeros(3)], [torch.zeros(7)]]).wait()
        comm.barrier()
        return comm.reading() - before

    first, middle, last = run_ranks(3, body, wrap=Metered)
    assert first.tx_bytes_by_peer()[2] == 7 * 4 + 8
    assert first.rx_bytes_by_peer()[2] == 3 * 4 + 8
    assert last.tx_bytes_by_peer() == {0: 20, 1: 0}
    assert (middle.tx_bytes, middle.rx_bytes, middle.rounds) == (0, 0, 0)
    assert first.traffic.rounds == 2


def test_a_barrier_is_counted_under_its_own_verb_only() -> None:
    def body(comm):
        comm.barrier()
        return comm.reading()

    for reading in run_ranks(3, body, wrap=Metered):
        assert (reading.rounds, reading.calls, reading.rounds_by_verb) == (0, {"barrier": 1}, {"barrier": 1})


def test_an_exchange_counts_each_pair() -> None:
    def body(comm):
        comm.exchange({(comm.rank + 1) % 4: [torch.zeros(10)]}, [(comm.rank - 1) % 4], [torch.zeros(0)]).wait()
        return comm.reading()

    for rank, reading in enumerate(run_ranks(4, body, wrap=Metered)):
        assert reading.tx_bytes_by_peer() == {(rank + 1) % 4: 48}
        assert reading.rx_bytes_by_peer() == {(rank - 1) % 4: 48}
        assert reading.rounds == 2


def test_a_result_waited_for_twice_counts_once() -> None:
    def body(comm):
        pending = comm.all_gather([torch.zeros(1)])
        pending.wait()
        pending.wait()
        return comm.reading().rx_bytes

    assert run_ranks(2, body, wrap=Metered) == [12, 12]
