import pytest

from omnizen.errors import UserError
from omnizen.plan.layouts import Layout, by_speed, even, sizes


def test_shares_add_up_to_the_batch_and_follow_speed():
    for batch in (7, 32, 33, 100):
        layout = by_speed([1.0, 1.0, 1.0, 1 / 3], 1, batch)
        assert sum(layout.samples) == batch
        assert layout.samples[3] == pytest.approx(batch / 10, abs=1)
        assert max(layout.samples[:3]) - min(layout.samples[:3]) <= 1


def test_a_very_slow_rank_keeps_one_sample():
    assert by_speed([1.0, 1.0, 1e-6], 1, 3).samples == (1, 1, 1)
    assert by_speed([100.0, 1.0], 1, 16).samples == (15, 1)


def test_groups_of_nearly_equal_speed():
    layout = by_speed([4.0, 1.0, 1.0, 1.0, 1.0], 2, 40)
    assert layout.groups == ((0,), (1, 2, 3, 4))
    assert layout.samples == (40, 10, 10, 10, 10)
    assert layout.group_of(3) == 1


def test_numbers_of_groups_worth_a_try():
    assert sizes(1) == (1,)
    assert sizes(4) == (1, 2, 4)
    assert sizes(12) == (1, 3, 6, 12)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: even(4, 3, 32), "cannot be divided"),
        (lambda: even(4, 1, 3), "a batch of 3"),
        (lambda: by_speed([1.0, 0.0], 1, 8), "above 0"),
        (lambda: by_speed([1.0, 1.0], 3, 8), "1 to 2 groups"),
        (lambda: Layout(((0,), (0, 1)), (1, 1)), "one group"),
        (lambda: Layout(((0,), ()), (1,)), "no group empty"),
        (lambda: Layout(((0, 1),), (1, 0)), "a sample or more"),
    ],
)
def test_what_is_refused(make, says):
    with pytest.raises(UserError, match=says):
        make()
