import threading

import pytest
import torch

from omnizen.comm.paced import Paced, PacedLink
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def paced(rate_bytes_per_s):
    return lambda comm: Paced(comm, PacedLink(rate_bytes_per_s, FakeClock()))


def test_a_result_comes_when_its_bytes_have_crossed() -> None:
    def body(comm):
        comm.all_gather([torch.zeros(98)]).wait()  # (98 * 4 + 8) bytes to each of two
        return comm.link.clock.now_s

    assert run_ranks(3, body, wrap=paced(100.0)) == [8.0] * 3


def test_computation_overlaps_and_verbs_follow_one_another() -> None:
    def body(comm):
        clock = comm.link.clock
        first = comm.all_gather([torch.zeros(48)])  # 200 bytes: 2 s
        second = comm.all_gather([torch.zeros(98)])  # 400 bytes: 4 s
        clock.sleep(1.5)
        first.wait()
        at_first = clock.now_s
        second.wait()
        at_second = clock.now_s
        clock.sleep(10.0)
        third = comm.all_gather([torch.zeros(48)])
        clock.sleep(5.0)
        third.wait()
        return at_first, at_second, clock.now_s

    assert run_ranks(2, body, wrap=paced(100.0)) == [(2.0, 6.0, 21.0)] * 2


def test_the_larger_direction_counts() -> None:
    def body(comm):
        parts = [[torch.zeros(0)], [torch.zeros(0)]]
        parts[1 - comm.rank] = [torch.zeros(248 * comm.rank)]  # rank 1 sends 1000 bytes, rank 0 sends 8
        comm.all_to_all(parts).wait()
        return comm.link.clock.now_s

    assert run_ranks(2, body, wrap=paced(100.0)) == [10.0, 10.0]


def test_groups_share_the_link() -> None:
    def body(comm):
        group = comm.sub([1, 0], "both")
        a, b = comm.all_gather([torch.zeros(48)]), group.all_gather([torch.zeros(48)])
        a.wait(), b.wait()
        return comm.link.clock.now_s

    assert run_ranks(2, body, wrap=paced(100.0)) == [4.0, 4.0]


def test_a_rate_is_positive() -> None:
    with pytest.raises(UserError, match="positive"):
        PacedLink(0.0)


def test_concurrent_crossings_never_share_a_moment() -> None:
    link = PacedLink(10.0, FakeClock())
    ends: list[float] = []
    threads = [threading.Thread(target=lambda: ends.append(link.cross(0.0, 10))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == [float(i) for i in range(1, 21)]
