"""The state machine: what it asks for and rejects, that it goes on from anywhere, what its searching costs."""

import math

import pytest

from omnizen.errors import UserError
from omnizen.plan.tuner import Carrier, Done, Point, Probe, Result, Settings, Train, Tuner
from tests.plan.tuner.simulated import Task, fixed, play

SEARCHES = ["grid", "halving", "model"]
CYCLES = {1: [0.2], 2: [0.2] * 2, 4: [0.2] * 4}
NAN = float("nan")


def settings(search="grid", **kw):
    return Settings(**{"workers": 4, "search": search, "probe_s": 20.0, "update_s": (1.0, 0.5, 0.25)} | kw)


def answered(tuner, loss, *, actions=200, updates=None):
    """Answer probes by a function of the point; returns the points in order."""
    asked = []
    for _ in range(actions):
        action = tuner.next()
        if not isinstance(action, Probe):
            return asked
        asked.append(action.point)
        number = updates(action.point) if updates else 10 * action.point.groups
        tuner.tell(Result(action.seconds, number, (5.0, *[loss(action.point)] * 10)))
    raise AssertionError("the search does not end")


def bowl(momentum, step):
    """A loss with one best point for all groups, lower with more groups."""
    return lambda p: 1 + abs(p.momentum - momentum) + abs(math.log10(p.step / step)) - 0.1 * p.groups


@pytest.mark.parametrize("search", SEARCHES)
def test_same_answers_same_questions_from_every_saved_state(search):
    task, most = Task(CYCLES), 30 if search == "halving" else 20
    whole, parts = Tuner(settings(search, probe_s=2.0)), []
    play(whole, task, 0.0, most=most)

    def put_away_and_back(tuner):
        parts.append(Tuner.from_json(tuner.to_json()))
        return parts[-1]

    play(Tuner(settings(search, probe_s=2.0)), task, 0.0, most=most, each=put_away_and_back)
    assert parts[-1].to_json() == whole.to_json()
    assert parts[-1].notes == whole.notes
    assert {note.phase for note in whole.notes} >= {"cold start", "steady state"}


@pytest.mark.parametrize("search", SEARCHES)
def test_next_is_the_same_until_told(search):
    tuner = Tuner(settings(search))
    assert tuner.next() is tuner.next()


def test_the_papers_cold_start():
    tuner = Tuner(settings())
    asked = answered(tuner, bowl(0.3, 0.01))
    first = [p for p in asked if p.groups == 1]
    assert [p.step for p in first] == [0.0001, 0.001, 0.01, 0.1]
    assert {p.momentum for p in first} == {0.9}
    two = [p for p in asked if p.groups == 2]
    # Nothing above the winner before it (0.01, 0.9), nothing smaller in both.
    assert set(two) == {Point(2, 0.001, 0.9), *(Point(2, 0.01, m) for m in (0.0, 0.3, 0.6, 0.9))}
    four = [p for p in asked if p.groups == 4]
    assert set(four) == {*(Point(4, 0.001, m) for m in (0.3, 0.6, 0.9)), *(Point(4, 0.01, m) for m in (0.0, 0.3))}
    action = tuner.next()
    assert isinstance(action, Train)
    assert action.point == Point(4, 0.01, 0.3)
    assert asked[action.start] == action.point


def test_saturation_ends_the_cold_start():
    tuner = Tuner(settings())
    asked = answered(tuner, bowl(0.9, 0.01), updates=lambda p: 10)
    assert {p.groups for p in asked} == {1, 2}
    assert sum(p.groups == 2 for p in asked) == 1
    assert any(note.kind == "stopped" and "10% faster" in note.text for note in tuner.notes)
    assert tuner.next().point.groups == 1


def test_after_nan_nothing_larger_is_probed_and_it_is_never_chosen():
    tuner = Tuner(settings())
    asked = answered(tuner, lambda p: NAN if p.step >= 0.01 else bowl(0.3, 0.001)(p))
    assert Point(1, 0.01, 0.9) in asked
    assert Point(1, 0.1, 0.9) not in asked
    assert tuner.next().point.step < 0.01
    rejected = [note for note in tuner.notes if note.kind == "rejected"]
    assert "lr 0.01" in rejected[0].text
    assert "no number after 1 of 10 updates" in rejected[0].text


@pytest.mark.parametrize("search", SEARCHES)
def test_a_loss_that_blows_up_is_rejected_with_its_numbers(search):
    tuner = Tuner(settings(search))
    answered(tuner, lambda p: 100.0 if p.step > 0.003 else bowl(0.0, 0.001)(p))
    assert any("from 5 to 100" in note.text for note in tuner.notes if note.kind == "rejected")
    assert tuner.next().point.step <= 0.003


@pytest.mark.parametrize("search", SEARCHES)
def test_when_everything_diverges_it_says_so_after_trying_smaller_steps(search):
    tuner = Tuner(settings(search))
    asked = answered(tuner, lambda p: NAN)
    assert min(p.step for p in asked) < 1e-5
    assert isinstance(tuner.next(), Done)
    assert "every probe" in tuner.next().reason
    with pytest.raises(UserError, match="expects no more"):
        tuner.tell(Result(1.0, 1, (1.0,)))


@pytest.mark.parametrize("search", SEARCHES)
def test_a_failed_probe_is_no_divergence_of_others(search):
    tuner = Tuner(settings(search))
    probe = tuner.next()
    tuner.tell(Result(3.0, 0, error="rank 2 lost"))
    assert "rank 2 lost" in tuner.notes[-1].text
    assert tuner.trials[0].point == probe.point
    answered(tuner, bowl(0.3, 0.01))
    assert isinstance(tuner.next(), Train)


def test_fewer_groups_while_momentum_0_wins():
    tuner = Tuner(settings())
    answered(tuner, bowl(0.0, 0.01))
    train = tuner.next()
    assert train.point == Point(4, 0.01, 0.0)
    tuner.tell(Result(train.seconds, 400, (1.0,) * 20))
    asked = answered(tuner, bowl(0.0, 0.01))
    assert [p.groups for p in asked] == sorted((p.groups for p in asked), reverse=True)
    assert {p.groups for p in asked} == {4, 2, 1}
    assert Point(2, 0.01, 0.6) in asked  # as large as momentum may be again
    assert Point(2, 0.01, 0.9) not in asked


def test_near_ties_go_to_the_larger_step_in_steady_state():
    tuner = Tuner(settings())
    answered(tuner, bowl(0.6, 0.01))
    train = tuner.next()
    tuner.tell(Result(train.seconds, 400, (1.0,) * 20))
    answered(tuner, lambda p: 1.0 if p.step < 0.005 else 1.009)
    assert tuner.next().point.step == 0.01
    assert tuner.notes[-1].kind == "unsure" or any(n.kind == "unsure" for n in tuner.notes)


@pytest.mark.parametrize("search", SEARCHES)
def test_searching_stays_within_its_share(search):
    task, shares = Task(CYCLES), []

    def watch(tuner):
        action, _ = tuner.told[-1]
        if isinstance(action, Train):
            shares.append(tuner.overhead)
        return tuner

    play(Tuner(settings(search, probe_s=2.0)), task, 0.0, most=45, each=watch)
    assert len(shares) >= 2
    assert max(shares) <= 0.1 + 1e-9


def test_a_horizon_limits_the_cold_start():
    tuner = Tuner(settings(horizon_s=600.0))
    asked = answered(tuner, bowl(0.3, 0.01))
    assert len(asked) == 4  # 60 of 600 seconds, and those of the one that is gone on with
    assert any("10%" in note.text for note in tuner.notes if note.kind == "stopped")
    train = tuner.next()
    tuner.tell(Result(600.0, 100, (1.0,) * 10))
    assert isinstance(train, Train)
    assert isinstance(tuner.next(), Done)


@pytest.mark.parametrize("search", SEARCHES)
def test_training_that_diverges_goes_on_smaller_from_the_checkpoint(search):
    tuner = Tuner(settings(search))
    answered(tuner, bowl(0.3, 0.01))
    train = tuner.next()
    tuner.tell(Result(train.seconds, 400, (1.0, NAN)))
    assert any("training diverged" in note.text for note in tuner.notes)
    assert tuner.next().start is None
    assert tuner.next().point.step < train.point.step


def test_the_other_searches_probe_less_than_the_grid_and_choose_as_well():
    task, found = Task(CYCLES, noise=0.03), {}
    for search in SEARCHES:
        tuner = Tuner(settings(search, probe_s=10.0, update_s=(0.2, 0.1, 0.05)))
        carrier = Carrier(tuner, lambda action, start: task.run(action.point, action.seconds, start), task.start())
        while isinstance(tuner.next(), Probe):
            carrier.step()
        probed = sum(t.result.seconds for t in tuner.trials)
        found[search] = probed, fixed(task, tuner.next().point, 0.1, 300.0)
    assert found["halving"][0] < 0.5 * found["grid"][0]
    assert found["model"][0] < 0.8 * found["grid"][0]
    assert found["halving"][1] <= 1.1 * found["grid"][1]
    assert found["model"][1] <= 1.1 * found["grid"][1]


def test_kept_states_are_those_that_may_be_asked_for():
    tuner = Tuner(settings("halving"))
    for _ in range(100):
        action = tuner.next()
        if isinstance(action, Done):
            break
        if action.start is not None:
            assert action.start in tuner.kept
        if isinstance(action, Train):
            break
        tuner.tell(Result(action.seconds, 10, (5.0, *[bowl(0.3, 0.01)(action.point)] * 10)))
    assert isinstance(action, Train)
    assert len(tuner.kept) == 1


@pytest.mark.parametrize(
    ("kw", "says"),
    [
        ({"workers": 0}, "workers"),
        ({"search": "gird"}, "did you mean 'grid'"),
        ({"groups": (2, 1)}, "groups must rise"),
        ({"update_s": (1.0,)}, "update_s"),
        ({"probe_s": 0.0}, "probe_s"),
        ({"overhead": 1.0}, "overhead"),
        ({"steps": (0.01, 0.1)}, "steps must fall"),
        ({"momenta": (1.5,)}, "momenta"),
        ({"horizon_s": NAN}, "horizon_s"),
        ({"blown_up": 0.5}, "blown_up"),
    ],
)
def test_settings_that_are_refused(kw, says):
    with pytest.raises(UserError, match=says):
        settings(**kw)


def test_saved_states_that_are_refused():
    tuner = Tuner(settings())
    tuner.tell(Result(1.0, 1, (1.0,)))
    text = tuner.to_json()
    for broken, says in (
        ("{", "cannot be read"),
        ("{}", "cannot be read"),
        (text.replace('"version": 1', '"version": 9'), "version is 9"),
        (text.replace('"probe_s"', '"probes"'), "did you mean 'probe_s'"),
        (text.replace('"momentum": 0.9', '"momentum": 0.8'), "cannot be gone on with"),
        (text.replace('"updates"', '"steps"'), "cannot be read"),
    ):
        with pytest.raises(UserError, match=says):
            Tuner.from_json(broken)


def test_results_that_are_refused():
    with pytest.raises(UserError, match="0 seconds or more"):
        Tuner(settings()).tell(Result(-1.0, 1))


def test_a_point_that_diverges_in_a_longer_probe_is_never_chosen() -> None:
    tuner = Tuner(Settings(workers=1, search="halving", probe_s=8.0, steps=(0.1, 0.05, 0.02, 0.01)))
    while isinstance(action := tuner.next(), Probe):
        longer = action.start is not None
        tuner.tell(Result(action.seconds, 10, (1.0, math.nan if longer else action.point.step)))
    assert isinstance(action, Train)
    assert action.point.step == pytest.approx(0.05)


def test_training_that_always_fails_comes_to_an_end() -> None:
    tuner = Tuner(Settings(workers=1, search="halving", probe_s=8.0, steps=(0.1,)))
    for _ in range(200):
        action = tuner.next()
        if isinstance(action, Done):
            break
        good = isinstance(action, Probe) and len(tuner.trials) == 0
        tuner.tell(Result(1.0, 1, (1.0,)) if good else Result(0.0, 0, (), error="no machine"))
    assert "6 times in a row" in action.reason
