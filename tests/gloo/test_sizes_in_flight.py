"""Calls of all sizes and kinds in flight together: what a frame holds, what it does not, what goes in rounds."""

from __future__ import annotations

import random
import threading

import pytest
import torch

from omnizen.comm.torch_pg import thread_gloo_ranks
from omnizen.errors import PeerLost

INLINE = [0, 1, 71, 72, 73, 79, 80, 81]
LARGE = [64 * 2**10 - 1, 64 * 2**10, 64 * 2**10 + 1]


def part(source: int, dest: int, call: int, nbytes: int) -> torch.Tensor:
    return torch.arange(nbytes, dtype=torch.uint8) + source * 7 + dest * 3 + call


def size_of(source: int, dest: int, call: int, sizes: list[int]) -> int:
    return sizes[(source * 5 + dest * 3 + call) % len(sizes)]


@pytest.mark.parametrize("sizes", [INLINE, LARGE, INLINE + LARGE])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_sizes_around_the_limits_that_differ_between_ranks(size, sizes) -> None:
    def body(comm):
        me, calls = comm.rank, []
        for call in range(len(sizes)):
            out = [[part(me, dest, call, size_of(me, dest, call, sizes))] for dest in range(size)]
            calls.append(comm.all_to_all(out))
            calls.append(comm.all_gather([part(me, 0, call, size_of(me, 0, call, sizes)), torch.tensor(me)]))
        for call in range(len(sizes)):
            across, gathered = calls[2 * call].wait(), calls[2 * call + 1].wait()
            for source in range(size):
                expected = part(source, me, call, size_of(source, me, call, sizes))
                assert torch.equal(across[source][0], expected)
                assert torch.equal(gathered[source][0], part(source, 0, call, size_of(source, 0, call, sizes)))
                assert int(gathered[source][1]) == source
        return True

    assert thread_gloo_ranks(size, body) == [True] * size


@pytest.mark.parametrize("count", [1, 5, 8, 9, 10, 11, 30])
def test_many_parts_of_few_bytes(count) -> None:
    def body(comm):
        gathered = comm.all_gather([torch.full((i % 2,), comm.rank, dtype=torch.int16) for i in range(count)])
        return [[p.tolist() for p in parts] for parts in gathered.wait()]

    for got in thread_gloo_ranks(3, body):
        assert got == [[[source] * (i % 2) for i in range(count)] for source in range(3)]


def test_all_verbs_in_any_order_waited_for_in_any_order() -> None:
    order = random.Random(5)
    plan = [
        (order.choice(["sum", "gather", "across", "pair", "group"]), order.choice([1, 9, 80, 20_000]))
        for _ in range(60)
    ]

    def body(comm):
        n, me = comm.size, comm.rank
        group = comm.sub([0, 2], "ends")
        calls = []
        for i, (verb, length) in enumerate(plan):
            mine = torch.full((length,), me * 100 + i, dtype=torch.int64)
            if verb == "sum":
                calls.append((comm.all_reduce(mine), [sum(r * 100 + i for r in range(n))]))
            elif verb == "gather":
                calls.append((comm.all_gather([mine]), [r * 100 + i for r in range(n)]))
            elif verb == "across":
                calls.append(
                    (
                        comm.all_to_all([[mine + dest * 10_000] for dest in range(n)]),
                        [r * 100 + i + me * 10_000 for r in range(n)],
                    )
                )
            elif verb == "pair":
                after, before = (me + 1) % n, (me - 1) % n
                calls.append((comm.exchange({after: [mine]}, [before], [mine]), [before * 100 + i]))
            elif group is not None:
                calls.append((group.all_reduce(mine), [200 + 2 * i]))
        random.Random(me).shuffle(calls)  # each rank waits in an order of its own
        for pending, expected in calls:
            got = pending.wait()
            values = (
                [got] if isinstance(got, torch.Tensor) else list(got.values()) if isinstance(got, dict) else got
            )
            flat = [v if isinstance(v, torch.Tensor) else v[0] for v in values]
            assert [v.unique().tolist() for v in flat] == [[e] for e in expected]
        if group is not None:
            group.close()
        return True

    assert thread_gloo_ranks(4, body) == [True] * 4


@pytest.mark.parametrize("in_flight", [1, 6])
def test_a_rank_that_ends_with_calls_in_flight_is_lost_to_all_others(in_flight) -> None:
    called = threading.Barrier(3)  # after a loss, calls are refused at once

    def body(comm):
        comm.step = 2
        comm.barrier()
        if comm.rank == 1:
            called.wait(10)
            return None
        calls = [comm.all_reduce(torch.ones(50_000)) for _ in range(in_flight)]
        calls += [comm.all_gather([torch.ones(3)]), comm.all_to_all([[torch.ones(40_000)]] * comm.size)]
        called.wait(10)
        errors = []
        for call in reversed(calls):
            with pytest.raises(PeerLost) as caught:
                call.wait()
            errors.append(caught.value)
        assert all(error is errors[0] for error in errors)
        return errors[0].peer, errors[0].step

    first, gone, third = thread_gloo_ranks(3, body, timeout_s=5.0)
    assert gone is None
    assert first == third == (1, 2)
