"""When a run has departed from what was expected of it, and what may be done about it."""

import pytest

from omnizen.plan.departure import Expectation, Look, affordable, middle_and_spread

SPREAD = 0.005


def look(step_s, compute_s=(0.05, 0.05), spread_s=SPREAD):
    return Look(step_s, spread_s, compute_s)


def told(*looks, predicted_s=0.1):
    run = Expectation(predicted_s)
    return [run.tell(x) for x in looks], run


def test_steps_that_vary_as_ever_are_no_news():
    said, _ = told(look(0.1), look(0.12), look(0.09), look(0.1, spread_s=0.05), look(0.2, spread_s=0.05))
    assert said == [None] * 5


def test_one_odd_look_is_forgotten_and_two_in_a_row_are_not():
    said, _ = told(look(0.1), look(0.3), look(0.1), look(0.3), look(0.31))
    assert said[:4] == [None] * 4
    assert "300.0 ms" not in said[4]
    assert (
        said[4] == "steps take 310.0 ms instead of 100.0 ms: computing takes as long as before, so links are slower"
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((0.05, 0.05), (0.05, 0.25), "rank 1 takes 5.0 times as long for its own computing"),
        ((0.25, 0.05), (0.05, 0.05), "rank 0 no longer takes 5.0 times as long for its own computing"),
    ],
)
def test_a_device_that_became_slower_or_recovered_is_named(before, after, words):
    step = {False: (0.3, 0.1), True: (0.1, 0.3)}[max(after) > max(before)]
    said, _ = told(look(step[0], before), look(step[1], after), look(step[1], after))
    assert words in said[-1]


def test_links_that_recover_are_news_too():
    said, _ = told(look(0.4), look(0.1), look(0.1))
    assert said[-1].endswith("so links are faster")


def test_a_prediction_that_was_off_is_said_once_measured():
    _, off = told(look(0.2), predicted_s=0.1)
    assert "100.0 ms were predicted" in off.first_words()
    _, right = told(look(0.11), predicted_s=0.1)
    assert right.first_words() is None


def test_measuring_anew_keeps_to_its_share_of_time():
    assert affordable(cost_s=3.0, spent_s=0.0, elapsed_s=150.0)
    assert not affordable(cost_s=3.0, spent_s=0.0, elapsed_s=149.0)
    assert not affordable(cost_s=3.0, spent_s=3.0, elapsed_s=299.0)


def test_the_middle_and_what_values_vary_by():
    assert middle_and_spread([1.0, 2.0, 3.0, 4.0, 100.0]) == (3.0, 2.0)
