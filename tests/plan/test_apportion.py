"""A global batch divided in whole samples: the sum exact, nobody without, bounds kept."""

from __future__ import annotations

import random

import pytest

from omnizen.errors import UserError
from omnizen.plan.apportion import apportion, level


def test_sums_and_bounds_hold_for_all_kinds_of_shares() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        workers, least = draw.randint(1, 8), draw.randint(1, 4)
        most = [draw.randint(least, 40) for _ in range(workers)]
        total = draw.randint(least * workers, sum(most))
        parts = apportion(total, [10 ** draw.uniform(-3, 3) for _ in range(workers)], least=least, most=most)
        assert sum(parts) == total
        assert all(least <= part <= bound for part, bound in zip(parts, most, strict=True))


def test_sizes_divide_their_own_sum_as_they_are() -> None:
    draw = random.Random(1)
    for _ in range(500):
        sizes = tuple(draw.randint(1, 50) for _ in range(draw.randint(1, 8)))
        assert apportion(sum(sizes), sizes) == sizes


def test_equal_shares_put_the_rest_on_low_ranks() -> None:
    for total in range(3, 40):
        assert apportion(total, [7] * 3) == tuple(total // 3 + (k < total % 3) for k in range(3))


def test_what_is_cut_off_goes_to_the_others() -> None:
    assert apportion(100, [1, 1, 2], most=[100, 100, 30]) == (35, 35, 30)
    assert apportion(10, [1000, 1, 1], least=2) == (6, 2, 2)


def test_workers_at_their_level_end_together() -> None:
    parts = level(100, [10.0, 5.0], [8.0, 2.0], 1, [100, 100])
    assert (8 + parts[0]) / 10 == pytest.approx((2 + parts[1]) / 5)
    assert sum(parts) == pytest.approx(100)


@pytest.mark.parametrize("share", [0, -1, float("nan"), float("inf")])
def test_shares_that_are_no_shares(share: float) -> None:
    with pytest.raises(UserError, match="above 0, worker 1's"):
        apportion(8, [1, share])


def test_a_batch_smaller_than_the_number_of_workers() -> None:
    with pytest.raises(UserError, match="3 samples cannot be shared by 4 workers"):
        apportion(3, [1] * 4)
    with pytest.raises(UserError, match="together they take at most 8"):
        apportion(9, [1, 1], most=[4, 4])
