"""Waiting times against the tables of the verified method description, simulations and hand-made cases."""

import pytest

from omnizen.errors import UserError
from omnizen.plan.queues import Customer, between, cycle_seconds, simulate

EXPONENTIAL = {3: {1: 1.00, 2: 1.06, 4: 1.26, 8: 1.01, 16: 1.00}, 7: {1: 1.00, 2: 1.02, 4: 1.06, 8: 1.22, 16: 1.00}}


@pytest.mark.parametrize(("customers", "seconds"), [(1, 4.0), (2, 2.0), (4, 1.0), (8, 1.0)])
def test_constant_times_are_exact(customers, seconds):
    group = Customer(3.0, (1.0,))
    assert between([group] * customers) == pytest.approx(seconds, rel=1e-9)
    assert simulate([group] * customers, cycles=5_000).between_s == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize("ratio", EXPONENTIAL)
@pytest.mark.parametrize("customers", [1, 2, 4, 8, 16])
def test_exponential_times_wait_as_in_the_table(ratio, customers):
    group = [Customer(float(ratio), (1.0,))] * customers
    expected = EXPONENTIAL[ratio][customers]
    assert between(group, 1.0) / between(group) == pytest.approx(expected, rel=0.02)
    assert simulate(group, 1.0, cycles=10_000).between_s == pytest.approx(between(group, 1.0), rel=0.03)


@pytest.mark.parametrize(("ratio", "customers"), [(1.0, 2), (3.0, 4), (7.0, 4), (7.0, 8)])
@pytest.mark.parametrize("variation", [0.05, 0.2, 0.5, 0.75])
def test_times_in_between(ratio, customers, variation):
    group = [Customer(ratio, (1.0,))] * customers
    assert between(group, variation) == pytest.approx(simulate(group, variation, cycles=8_000).between_s, rel=0.035)


def test_unlike_customers_with_one_station():
    group = [Customer(1.0, (0.5,)), Customer(3.0, (0.5,)), Customer(6.0, (0.5,))]
    for variation, off in ((0.0, 0.06), (0.3, 0.05), (1.0, 0.02)):
        played = simulate(group, variation, cycles=10_000).between_s
        assert between(group, variation) == pytest.approx(played, rel=off)


def test_more_unlike_customers_than_subsets_are_visited_for():
    many = [Customer(3.0 + j, (1.0, 0.2)) for j in range(10)]
    played = simulate([Customer(c.think_s, (1.0,)) for c in many], 1.0).between_s
    assert between(many, 1.0) == pytest.approx(played, rel=0.09)


def test_a_full_station_gives_its_own_rate_and_all_wait_alike():
    fast, slow = Customer(1.0, (2.0,)), Customer(9.0, (2.0,))
    cycles = cycle_seconds([fast, fast, slow])
    assert sum(2.0 / seconds for seconds in cycles) == pytest.approx(1.0)
    assert cycles[2] - cycles[0] == pytest.approx(8.0)


def test_stations_that_are_used_at_once_count_by_the_longest():
    assert cycle_seconds([Customer(1.0, (2.0, 0.5))]) == (3.0,)
    apart = [Customer(1.0, (2.0, 0.0)), Customer(1.0, (0.0, 2.0))]
    assert cycle_seconds(apart, 1.0) == (3.0, 3.0)


def test_staleness_of_equal_and_of_random_times():
    constant = simulate([Customer(3.0, (0.0,))] * 4, cycles=4_000).staleness
    assert constant[3] == sum(constant)
    drawn = simulate([Customer(3.0, (0.0,))] * 4, 1.0, cycles=40_000).staleness
    shares = [count / sum(drawn) for count in drawn]
    assert shares[:4] == pytest.approx([0.25, 0.1875, 0.1406, 0.1055], abs=0.01)


@pytest.mark.parametrize(
    ("customers", "variation", "says"),
    [
        ([], 0.0, "at least one"),
        ([Customer(0.0, (0.0,))], 0.0, "more than 0"),
        ([Customer(float("nan"), (1.0,))], 0.0, "customer 0"),
        ([Customer(1.0, (1.0,)), Customer(1.0, ())], 0.0, "same stations"),
        ([Customer(1.0, (1.0,))], -1.0, "from 0"),
    ],
)
def test_what_is_refused(customers, variation, says):
    with pytest.raises(UserError, match=says):
        cycle_seconds(customers, variation)
