"""Unequal shares that change while an epoch goes on: nothing lost, nothing twice, whatever was read ahead."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from omnizen.errors import OmnizenError
from omnizen.train.loader import ShardedLoader
from omnizen.train.shares import SPARE_STEPS, Shares


def loaders(samples: int, sizes: tuple[int, ...], **options) -> list[ShardedLoader]:
    plain = DataLoader(TensorDataset(torch.arange(samples)), batch_size=sum(sizes) // len(sizes), **options)
    return [
        ShardedLoader(plain, rank, len(sizes), 3, lambda n: None, Shares(sizes, moving=True))
        for rank in range(len(sizes))
    ]


def lockstep(made: list[ShardedLoader], change_after: dict[int, tuple[int, ...]]) -> list[list[list[int]]]:
    """Read a pass on all ranks step by step; ``change_after[step]`` is agreed on after that step's batches."""
    steps = []
    for step, batches in enumerate(zip(*made, strict=True)):
        steps.append([batch[0].tolist() for batch in batches])
        if step in change_after:
            drawn = [loader.shares.drawn for loader in made]
            places = {loader.shares.change(change_after[step], drawn) for loader in made}
            assert len(places) == 1
    return steps


@pytest.mark.parametrize("samples", [60, 61, 64])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_sample_once_whatever_changes(samples: int, drop_last: bool) -> None:
    made = loaders(samples, (3, 2, 1), shuffle=True, drop_last=drop_last)
    whole = samples - samples % 6 if drop_last else samples
    seen_sizes = set()
    for change_after in ({}, {2: (1, 1, 4)}, {0: (4, 1, 1), 5: (2, 2, 2)}, {9: (1, 4, 1)}, {}):
        steps = lockstep(made, change_after)
        read = [i for step in steps for part in step for i in part]
        assert len(read) == len(set(read)) == whole
        assert all(part for step in steps for part in step)
        seen_sizes |= {tuple(map(len, step)) for step in steps}
    assert {(3, 2, 1), (1, 1, 4), (2, 2, 2), (1, 4, 1)} <= seen_sizes


def test_workers_that_read_ahead_see_a_change_later_and_lose_nothing() -> None:
    made = loaders(91, (3, 2, 1), shuffle=True, num_workers=2)
    steps = lockstep(made, {2: (1, 1, 4)})
    assert sorted(i for step in steps for part in step for i in part) == list(range(91))
    sizes = [tuple(map(len, step)) for step in steps]
    assert sizes[6] == (3, 2, 1)  # four batches are drawn beyond the one in hand
    assert sizes[3 + 4 + SPARE_STEPS] == (1, 1, 4)


def test_the_global_batches_are_those_of_even_shares() -> None:
    even, uneven = loaders(61, (2, 2, 2), shuffle=True), loaders(61, (2, 2, 2), shuffle=True)
    for step, (a, b) in enumerate(zip(lockstep(even, {}), lockstep(uneven, {3: (1, 1, 4)}), strict=True)):
        assert [i for part in a for i in part] == [i for part in b for i in part], step


def test_a_change_begins_where_no_rank_has_drawn() -> None:
    made = loaders(60, (2, 2, 2))
    batches = [iter(loader) for loader in made]
    for _ in range(3):
        next(batches[0])
    next(batches[1])
    place = made[0].shares.change((1, 1, 4), [loader.shares.drawn for loader in made])
    assert place == (1, 3 + SPARE_STEPS)
    assert made[0].shares.latest == (2, 2, 2)


def test_a_change_near_the_end_holds_from_the_next_pass_on() -> None:
    made = loaders(30, (2, 2, 2))
    first = lockstep(made, {4: (1, 1, 4)})
    assert {tuple(map(len, step)) for step in first} == {(2, 2, 2)}
    assert {tuple(map(len, step)) for step in lockstep(made, {})} == {(1, 1, 4)}
    assert made[0].shares.latest == (1, 1, 4)


def test_a_pass_that_is_left_early_and_set_epoch() -> None:
    made = loaders(60, (2, 2, 2), shuffle=True)
    for loader in made:
        next(iter(loader))
    places = {loader.shares.change((1, 1, 4), [(1, 1)] * 3) for loader in made}
    assert places == {(1, 1 + SPARE_STEPS)}
    for loader in made:
        loader.set_epoch(0)  # an earlier one; shares do not go back
    again = lockstep(made, {})
    assert {tuple(map(len, step)) for step in again} == {(1, 1, 4)}
    assert sorted(i for step in again for part in step for i in part) == list(range(60))


@pytest.mark.parametrize("stop", [4, 6, 10])
def test_resuming_goes_on_with_the_shares_and_with_a_change_under_way(stop: int) -> None:
    """Stopped before, at and after the step from which other shares hold; the end of the pass is 10."""
    changes = {3: (1, 1, 4)}
    whole = loaders(60, (2, 2, 2), shuffle=True, num_workers=0)
    expected = [lockstep(whole, changes), lockstep(whole, {})]
    first = loaders(60, (2, 2, 2), shuffle=True)
    batches = [iter(loader) for loader in first]
    got = []
    for step in range(stop):
        got.append([next(each)[0].tolist() for each in batches])
        if step in changes:
            drawn = [loader.shares.drawn for loader in first]
            for loader in first:
                loader.shares.change(changes[step], drawn)
    if stop == 10:
        assert all(next(each, None) is None for each in batches)
    second = loaders(60, (2, 2, 2), shuffle=True)
    for old, new in zip(first, second, strict=True):
        new.load_state_dict(old.state_dict())
    got += lockstep(second, {})
    if stop == 10:
        assert got == [*expected[0], *expected[1]]
    else:
        assert [got, lockstep(second, {})] == expected


def test_counting_follows_the_shares() -> None:
    counted: list[int] = []
    plain = DataLoader(TensorDataset(torch.arange(20)), batch_size=3)
    loader = ShardedLoader(plain, 1, 2, 0, counted.append, Shares((1, 5), moving=True))
    lengths = [len(batch) for (batch,) in loader]
    assert counted == lengths == [5, 5, 5, 1]


def test_fixed_shares_stay_when_a_checkpoint_brings_others() -> None:
    shares = Shares((2, 4))
    shares.load_state_dict([[0, 0, 3, 3]], (1, 2))
    assert (shares.latest, shares.drawn) == ((2, 4), (1, 2))


def test_a_thread_that_reads_far_ahead_during_a_backward_is_noticed() -> None:
    (loader,) = loaders(60, (6,))
    told = loader.shares.drawn

    def ahead() -> None:
        batches = iter(loader)
        for _ in range(SPARE_STEPS + 1):
            next(batches)

    thread = threading.Thread(target=ahead)
    thread.start()
    thread.join()
    with pytest.raises(OmnizenError, match="num_workers"):
        loader.shares.change((6,), [(1, told[1])])
