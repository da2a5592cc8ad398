"""Ranks of one machine on cores of their own."""

from __future__ import annotations

import os

import pytest
import torch

from omnizen.errors import UserError
from omnizen.train.cores import core_sets, pin_cores


def test_cores_are_parted_without_a_rest() -> None:
    assert core_sets(range(7), [1, 1, 1], 3) == [(0, 1, 2), (3, 4), (5, 6)]
    assert core_sets([4, 5, 9, 11], [3, 1], 2) == [(4, 5, 9), (11,)]
    assert core_sets([1, 2], [100, 1], 2) == [(1,), (2,)]


def test_too_many_ranks_and_wrong_shares_are_refused() -> None:
    with pytest.raises(UserError, match="3 ranks on this machine may use 2 cores"):
        core_sets([0, 1], [1, 1, 1], 3)
    with pytest.raises(UserError, match="one for each of 2 ranks"):
        core_sets([0, 1], [1], 2)


def test_a_process_stays_on_its_part(monkeypatch) -> None:
    set_to: list[tuple[int, ...]] = []
    threads = torch.get_num_threads()
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: set_to.append(cores))
    try:
        assert pin_cores() == (2, 5)
        assert torch.get_num_threads() == 2
        assert pin_cores([3, 1]) == (5,)
    finally:
        torch.set_num_threads(threads)
    assert set_to == [(2, 5), (5,)]
