"""Other compute groups within a run: weights, momentum and the epoch go on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from omnizen.errors import UserError
from omnizen.strategies.groups import groups
from omnizen.train.groups.tickets import TicketBook
from omnizen.train.run import Run
from tests.train.groups.test_groups_data import one_step, prepared
from tests.train.helpers import assert_equal, on_ranks, weights


def momenta(run: Run) -> list[torch.Tensor]:
    with run.driver.attached():
        (optimizer,) = run.optimizers
        return [optimizer.state[p]["momentum_buffer"].clone() for g in optimizer.param_groups for p in g["params"]]


def changing(run: Run) -> Any:
    """Train a few steps in two groups, then in three, then together, to the end of the epoch; then one more."""
    made = prepared(run, groups([[0, 1], [2, 3]]), samples=96)
    read: list[list[int]] = []
    sizes = []
    for step, (x,) in enumerate(made[2]):
        read.append(one_step(made, x))
        sizes.append(len(read[-1]))
        if step in (1, 3):
            run.flush()
            before = weights(made[0]), momenta(run)
            assert sum(run.staleness().values()) > 0
            into, samples = ([[0], [1, 2], [3]], [2, 4, 1, 1]) if step == 1 else (1, ())
            run.regroup(into, samples=samples)
            assert_equal(weights(made[0]), before[0])
            for kept, found in zip(before[1], momenta(run), strict=True):
                assert torch.equal(kept, found)
            assert not run.staleness(), "counted anew"
            run.flush()  # nobody trains before all have looked
    again = [i for (x,) in made[2] for i in one_step(made, x)]
    run.flush()
    return [i for part in read for i in part], again, sizes, weights(made[0]), run.step


def check(results: list[Any]) -> None:
    for turn in (0, 1):
        assert Counter(i for each in results for i in each[turn]) == dict.fromkeys(range(96), 1)
    assert [sizes[:4] for _, _, sizes, _, _ in results] == [[2, 2, 2, 2], [2, 2, 4, 4], [2, 2, 1, 1], [2, 2, 1, 1]]
    assert all(sizes[4] == 2 for _, _, sizes, _, _ in results)
    for _, _, _, found, step in results:
        assert_equal(found, results[0][3])
        assert step == results[0][4]


def test_groups_change_twice_in_an_epoch() -> None:
    check(on_ranks(4, changing))


def test_groups_change_between_two_passes() -> None:
    def body(run: Run) -> Any:
        made = prepared(run, groups(2), samples=23)
        seen = []
        for into in (groups(2).groups, 1, [[1], [0]]):
            run.regroup(into)
            seen.append([i for (x,) in made[2] for i in one_step(made, x)])
        return seen

    first, second = on_ranks(2, body)
    for mine, other in zip(first, second, strict=True):
        assert Counter(mine + other) == dict.fromkeys(range(23), 1)


def test_what_was_drawn_and_not_read_is_drawn_anew() -> None:
    book = TicketBook([1, 1], samples=10, drop_last=False)
    drawn = [book.draw(0, sequence, group=group, wanted=2) for sequence in (0, 1) for group in (0, 1)]
    assert drawn == [[(0, 0, 2)], [(0, 2, 4)], [(0, 4, 6)], [(0, 6, 8)]]
    book.regroup([2], 0, [1, 2], over=False)
    assert book.read() == [(0, 0, 4), (0, 6, 8)]
    assert book.draw(0, 0, group=0, wanted=4) == [(0, 4, 6), (0, 8, 10)]
    assert book.draw(0, 1, group=0, wanted=4) == []
    book.regroup([1, 1], 0, [1], over=True)
    assert book.draw(1, 0, group=1, wanted=4) == [(1, 0, 4)]


def test_what_cannot_be_regrouped_is_refused() -> None:
    def body(run: Run) -> None:
        made = prepared(run, groups(2))
        with pytest.raises(UserError, match="3 groups need as many ranks"):
            run.regroup(3)
        with pytest.raises(UserError, match="samples: one or more"):
            run.regroup(1, samples=[1])
        if run.rank == 0:
            next(iter(made[2]))
            made[2].epoch = 1
        with pytest.raises(UserError, match="different passes"):
            run.regroup(1)
        made[2].epoch = 0

    def alone(run: Run) -> None:
        prepared(run, "dense")
        with pytest.raises(UserError, match="this run has none"):
            run.regroup(2)

    on_ranks(2, alone)
    on_ranks(2, body)
