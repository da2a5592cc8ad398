import pytest
import torch

from omnizen import spans
from omnizen.comm.torch_pg import thread_gloo_ranks
from omnizen.comm.wire import Wire
from omnizen.errors import Disagreement, PeerLost, PeerTimeout, UserError


def test_all_reduce_of_each_dtype_and_shape() -> None:
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]

    def body(comm):
        return [comm.all_reduce(torch.full((2, 3), comm.rank + 1, dtype=d).t()).wait() for d in dtypes]

    for got in thread_gloo_ranks(3, body):
        assert [(g.dtype, g.shape, g.unique().tolist()) for g in got] == [(d, (3, 2), [6]) for d in dtypes]


def test_uneven_all_to_all_with_empty_parts_and_unaligned_dtypes() -> None:
    def body(comm):
        out = [
            [torch.full((comm.rank * dest,), True), torch.full((dest, 2), 10 * comm.rank + dest)]
            for dest in range(comm.size)
        ]
        return comm.all_to_all(out).wait()

    for me, got in enumerate(thread_gloo_ranks(4, body)):
        for source, (flags, numbers) in enumerate(got):
            assert flags.tolist() == [True] * (me * source)
            assert numbers.tolist() == [[10 * source + me] * 2] * me


def test_more_parts_than_a_frame_holds() -> None:
    got = thread_gloo_ranks(
        3, lambda c: [p.tolist() for p in c.all_gather([torch.arange(i + c.rank) for i in range(25)]).wait()[2]]
    )
    assert got[0] == [list(range(i + 2)) for i in range(25)]


def test_sub_groups_of_sub_groups() -> None:
    def body(comm):
        comm.step = 5
        three = comm.sub([3, 1, 0], "three")
        if three is None:
            return None
        two = three.sub([0, 1], "two")
        total = three.all_reduce(torch.tensor([comm.rank])).wait().item()
        inner = None if two is None else (two.members, two.step, two.all_reduce(torch.tensor([1])).wait().item())
        if two is not None:
            two.close()
        three.close()
        return three.rank, total, inner

    assert thread_gloo_ranks(4, body) == [(2, 4, None), (1, 4, ([3, 1], 5, 2)), None, (0, 4, ([3, 1], 5, 2))]


def test_sizes_that_differ_raise_on_all_ranks_and_name_them() -> None:
    def body(comm):
        with pytest.raises(Disagreement) as first:
            comm.all_reduce(torch.zeros(3 + (comm.rank == 1))).wait()
        with pytest.raises(Disagreement) as later:
            comm.barrier()
        assert later.value is first.value
        return str(first.value)

    for text in thread_gloo_ranks(3, body):
        assert "12 bytes" in text
        assert "16 bytes" in text


def test_a_rank_in_another_call_is_named() -> None:
    def body(comm):
        comm.step = comm.rank
        with pytest.raises(Disagreement, match=r"rank 1 called barrier at step 1|rank 0 called all_gather"):
            comm.barrier() if comm.rank else comm.all_gather([torch.zeros(2)]).wait()

    thread_gloo_ranks(2, body)


def test_a_rank_that_ends_is_named_by_all_others() -> None:
    def body(comm):
        comm.step = 4
        if comm.rank == 2:
            return None
        with pytest.raises(PeerLost) as caught:
            comm.all_reduce(torch.zeros(3)).wait()
        return caught.value.rank, caught.value.peer, caught.value.step

    assert thread_gloo_ranks(4, body) == [(0, 2, 4), (1, 2, 4), None, (3, 2, 4)]


def test_who_waits_in_vain_is_told_after_the_limit() -> None:
    import threading

    told = threading.Event()

    def body(comm):
        comm.step = 1
        if comm.rank == 1:
            assert told.wait(10)
            return None
        with pytest.raises(PeerTimeout, match=r"rank 0 waited in vain for rank 1 at step 1 after 0\.\d s"):
            comm.barrier()
        told.set()
        return "told"

    assert thread_gloo_ranks(2, body, timeout_s=0.3) == ["told", None]


def test_a_closed_comm_says_so() -> None:
    def body(comm):
        comm.close()
        comm.close()
        with pytest.raises(UserError, match="closed"):
            comm.barrier()

    thread_gloo_ranks(2, body)


def test_waiting_for_peers_and_moving_data_are_told_apart() -> None:
    def body(comm):
        comm.all_gather([torch.zeros(3)]).wait()
        comm.all_reduce(torch.zeros(3)).wait()

    recorder = spans.Recorder()
    spans.listen(recorder)
    try:
        thread_gloo_ranks(2, body)
    finally:
        spans.listen(None)
    found = recorder.drain()
    for rank in range(2):
        threads = (f"comm world rank {rank}", f"rank{rank}")  # the comm's own, or the one that waits
        mine = [(s.category, s.name) for s in found if s.thread.startswith(threads)]
        assert mine == [
            ("wait", "all_gather"),
            ("wire", "all_gather"),
            ("wait", "all_reduce"),
            ("wire", "all_reduce"),
        ]


def test_many_calls_in_flight_are_carried_out_in_order() -> None:
    def body(comm):
        calls = [comm.all_gather([torch.full((i % 3,), 10 * comm.rank + i)]) for i in range(20)]
        calls += [comm.all_reduce(torch.tensor([i])) for i in range(5)]
        return [call.wait() for call in reversed(calls)][::-1]

    for got in thread_gloo_ranks(3, body):
        for i in range(20):
            assert [p.tolist() for (p,) in got[i]] == [[10 * source + i] * (i % 3) for source in range(3)]
        assert [int(x) for x in got[20:]] == [0, 3, 6, 9, 12]


def test_partners_send_to_each_other_at_the_same_time(monkeypatch) -> None:
    moved = []
    real = Wire.transfer

    def watched(wire, receive, send, watch):
        moved.append({"in": sorted(receive), "out": sorted(send)})
        return real(wire, receive, send, watch)

    monkeypatch.setattr(Wire, "transfer", watched)

    def body(comm):
        other = comm.rank ^ 1
        data = [torch.full((5,), comm.rank)]
        return comm.exchange({other: data}, [other], data).wait()[other][0].tolist()

    assert thread_gloo_ranks(4, body) == [[1] * 5, [0] * 5, [3] * 5, [2] * 5]
    assert all(one["in"] == one["out"] for one in moved), "no message waited for the other direction"
