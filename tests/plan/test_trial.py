import collections
import itertools

import pytest
import torch

from omnizen import catalog
from omnizen.comm.threads import run_ranks
from omnizen.plan.plan import Prediction, Rejected, TensorPlan
from omnizen.plan.search import make_plan
from omnizen.plan.trial import refine
from omnizen.types import Dense, Sparse
from tests.plan.builders import independent, job

ROWS = Sparse(torch.arange(4), torch.ones(4, 2), 10)


def plan_of(schemes, kind="row-sparse", wire_s=None):
    """Make a plan of which the first scheme is chosen and the others rejected, by predicted seconds."""
    (first, first_s), *others = schemes.items()
    plan = make_plan(job(2, gradients=[]))
    rejected = [
        Rejected(scheme=s, predicted_s=t, rx_bytes=200.0, reason="slower", wire_s=wire_s) for s, t in others
    ]
    tensor = TensorPlan(
        name="x", kind=kind, scheme=first, predicted_s=first_s, rx_bytes=100.0, wire_s=wire_s, rejected=rejected
    )
    prediction = Prediction(
        step_s=2 + first_s, compute_s=2, exposed_comm_s=first_s, comm_s=first_s, rx_bytes_per_step=100
    )
    return plan.model_copy(update={"tensors": [tensor], "prediction": prediction})


def try_with(plan, seconds_by_scheme, monkeypatch, size=2, budget_s=100.0, rounds=3):
    """Refine on thread ranks whose clocks advance by scripted seconds for each scheme and rank."""
    tried = collections.Counter()

    class Scripted:
        def __init__(self, name, inner):
            self.name, self.inner, self.takes = name, inner, inner.takes

        def init(self, like):
            return self.inner.init(like)

        def start(self, x, state, comm, step):
            clocks[comm.rank][0] += next(scripts[comm.rank][self.name])
            tried[self.name] += 1
            return self.inner.start(x, state, comm, step)

    clocks = [[0.0] for _ in range(size)]
    scripts = [{n: itertools.cycle(s[r]) for n, s in seconds_by_scheme.items()} for r in range(size)]
    real = catalog.reducer
    monkeypatch.setattr(catalog, "reducer", lambda name: Scripted(name, real(name)))

    def body(comm):
        return refine(plan, comm, {"x": ROWS}, rounds=rounds, budget_s=budget_s, clock=lambda: clocks[comm.rank][0])

    plans = run_ranks(size, body)
    assert all(p == plans[0] for p in plans)
    return plans[0], tried


def test_the_measured_fastest_of_near_ties_wins(monkeypatch):
    plan = plan_of({"zen-coo": 1.0, "agsparse": 1.1, "dense": 1.2})
    refined, tried = try_with(plan, {"zen-coo": [[2.0], [1.0]], "agsparse": [[0.5], [1.5]]}, monkeypatch)
    assert set(tried) == {"zen-coo", "agsparse"}, "dense is too far away to be tried"
    tensor = refined.tensors[0]
    assert (tensor.scheme, tensor.origin, tensor.predicted_s, tensor.rx_bytes) == ("agsparse", "trial", 1.1, 200.0)
    assert tensor.measured_s == pytest.approx(1.5), "the slowest rank counts"
    lost = next(r for r in tensor.rejected if r.scheme == "zen-coo")
    assert lost.measured_s == pytest.approx(2.0)
    assert lost.reason == "tried: 2.00 s against 1.50 s"
    assert {r.scheme: r.reason for r in tensor.rejected}["dense"] == "slower"
    assert refined.prediction.step_s == pytest.approx(3.5)
    assert refined.prediction.rx_bytes_per_step == 200.0


def test_the_median_forgives_a_disturbance_and_the_first_round_does_not_count(monkeypatch):
    plan = plan_of({"zen-coo": 1.0, "agsparse": 1.1})
    seconds = {"zen-coo": [[9.0, 1.0, 8.0, 1.0]] * 2, "agsparse": [[0.1, 2.0, 2.0, 2.0]] * 2}
    tensor = try_with(plan, seconds, monkeypatch)[0].tensors[0]
    assert (tensor.scheme, tensor.measured_s, tensor.origin) == ("zen-coo", pytest.approx(1.0), "trial")


def test_without_near_ties_nothing_is_tried(monkeypatch):
    plan = plan_of({"zen-coo": 1.0, "agsparse": 1.2})
    assert try_with(plan, {}, monkeypatch) == (plan, {})


def test_a_tensor_without_a_sample_keeps_its_plan():
    plan = plan_of({"zen-coo": 1.0, "agsparse": 1.1})
    assert run_ranks(2, lambda comm: refine(plan, comm, {})) == [plan, plan]


@pytest.mark.parametrize("scheme", catalog.schemes("row-sparse"))
def test_real_schemes_run_on_real_contributions(scheme):
    plan = plan_of({"zen-coo" if scheme == "agsparse" else "agsparse": 1e-3, scheme: 1.1e-3})
    refined = run_ranks(3, lambda comm: refine(plan, comm, {"x": ROWS}, rounds=1))
    assert refined[0] == refined[1] == refined[2]
    tensor = refined[0].tensors[0]
    assert (tensor.origin, len(tensor.rejected)) == ("trial", 1)
    assert tensor.measured_s > 0
    assert tensor.rejected[0].measured_s > 0


@pytest.mark.parametrize(("other_s", "winner"), [(0.985, "zen-coo"), (0.96, "agsparse")])
def test_a_scheme_must_be_clearly_faster_to_replace_the_planned_one(other_s, winner, monkeypatch):
    seconds = {"zen-coo": [[9.0, 1.0, 1.0, 1.0]] * 2, "agsparse": [[9.0, other_s, other_s, other_s]] * 2}
    refined, _ = try_with(plan_of({"zen-coo": 1.0, "agsparse": 1.05}), seconds, monkeypatch)
    assert refined.tensors[0].scheme == winner


CLOSE = {
    "zen-coo": 1.0,
    "zen-cyclic-coo": 1.0,
    "zen-bitmap": 1.02,
    "agsparse": 1.05,
    "sparcml": 1.1,
    "zen-cyclic-bitmap": 1.1,
    "sparcml-split": 1.11,
    "sparcml-split-dense": 1.12,
    "omnireduce": 1.13,
}


def test_equal_predictions_are_tried_too_and_no_more_than_eight_schemes(monkeypatch):
    seconds = {scheme: [[1.0], [1.0]] for scheme in CLOSE}
    refined, tried = try_with(plan_of(CLOSE), seconds, monkeypatch)
    assert set(tried) == set(CLOSE) - {"omnireduce"}
    assert refined.tensors[0].scheme == "zen-coo", "the planned scheme wins a tie"


def test_of_schemes_that_the_trial_cannot_tell_apart_the_first_in_the_plans_order_is_chosen(monkeypatch):
    took = {"zen-coo": 1.3, "zen-cyclic-coo": 1.015, "zen-bitmap": 1.0}
    seconds = {scheme: [[took.get(scheme, 1.1)]] * 2 for scheme in CLOSE}
    assert try_with(plan_of(CLOSE), seconds, monkeypatch)[0].tensors[0].scheme == "zen-cyclic-coo"


def test_where_time_is_short_fewer_schemes_are_tried(monkeypatch):
    seconds = {scheme: [[1.0], [1.0]] for scheme in CLOSE}
    tried = try_with(plan_of(CLOSE), seconds, monkeypatch, budget_s=13.0)[1]
    assert set(tried) == {"zen-coo", "zen-cyclic-coo", "zen-bitmap"}


def test_what_could_be_faster_if_its_processor_time_were_wrong_is_tried_and_what_falls_behind_dropped(monkeypatch):
    plan = plan_of({"zen-coo": 0.4, "agsparse": 0.6, "sparcml": 0.6, "omnireduce": 0.62, "dense": 0.62}, wire_s=0.2)
    sure = [
        r.model_copy(update={"wire_s": 0.6}) if r.scheme == "omnireduce" else r for r in plan.tensors[0].rejected
    ]
    plan = plan.model_copy(update={"tensors": [plan.tensors[0].model_copy(update={"rejected": sure})]})
    took = {"zen-coo": 0.7, "agsparse": 0.4, "sparcml": 0.55, "dense": 0.45}
    refined, tried = try_with(plan, {s: [[t], [t]] for s, t in took.items()}, monkeypatch, rounds=9)
    assert refined.tensors[0].scheme == "agsparse"
    rounds = {"zen-coo": 2, "agsparse": 7, "sparcml": 4, "dense": 7}
    assert tried == {scheme: 2 * n for scheme, n in rounds.items()}, "on two ranks"


def test_short_rounds_vary_and_are_dropped_later(monkeypatch):
    seconds = {"zen-coo": [[0.009, 0.03, *[0.01] * 40]] * 2, "agsparse": [[0.02]] * 2}
    refined, tried = try_with(plan_of({"zen-coo": 0.01, "agsparse": 0.011}), seconds, monkeypatch, rounds=30)
    assert refined.tensors[0].scheme == "zen-coo"
    assert tried == {"zen-coo": 2 * 9, "agsparse": 2 * 9}


def test_what_is_left_after_others_were_dropped_is_tried_more_often(monkeypatch):
    took = {"zen-coo": 0.2, "agsparse": 0.204, "sparcml": 0.38, "dense": 0.38}
    plan = plan_of(dict.fromkeys(took, 0.2))
    _, tried = try_with(plan, {s: [[t]] * 2 for s, t in took.items()}, monkeypatch, rounds=400)
    assert tried["sparcml"] == tried["dense"] == 2 * 2
    assert tried["zen-coo"] == tried["agsparse"] == 2 * 7, "medians of rounds that do not vary are known"


def test_what_was_dropped_does_not_win_because_later_rounds_were_slower(monkeypatch):
    seconds = {"zen-coo": [[9.0, *[0.010] * 24, *[0.02] * 60]] * 2, "agsparse": [[9.0, *[0.014] * 24]] * 2}
    refined, _ = try_with(plan_of({"zen-coo": 0.01, "agsparse": 0.011}), seconds, monkeypatch, rounds=80)
    assert refined.tensors[0].scheme == "zen-coo"


@pytest.mark.parametrize(("rounds", "winner"), [(3, "zen-coo"), (200, "agsparse")])
def test_few_scattered_rounds_weigh_less_than_a_prediction_and_many_weigh_more(rounds, winner, monkeypatch):
    plan = plan_of({"zen-coo": 0.003, "agsparse": 0.0038}, wire_s=0.001)
    scattered = [0.0033, 0.0030, 0.0036, 0.0027, 0.0039] * 40
    faster = [t * 0.95 for t in scattered]
    seconds = {"zen-coo": [[0.05, *scattered]] * 2, "agsparse": [[0.05, *faster]] * 2}
    refined, _ = try_with(plan, seconds, monkeypatch, rounds=rounds)
    assert refined.tensors[0].scheme == winner


def test_the_budget_limits_rounds_and_then_tensors(monkeypatch):
    plan = plan_of({"zen-coo": 3.0, "agsparse": 3.1})
    seconds = {"zen-coo": [[3.0, 1.0, 9.0, 9.0]] * 2, "agsparse": [[3.0, 2.0, 0.1, 0.1]] * 2}
    refined, _ = try_with(plan, seconds, monkeypatch, budget_s=12.5)
    assert (refined.tensors[0].scheme, refined.tensors[0].measured_s) == ("zen-coo", pytest.approx(1.0))
    assert try_with(plan, {}, monkeypatch, budget_s=11.0) == (plan, {})


def test_dense_tensors_are_not_tried():
    plan = plan_of({"dense": 1.0}, kind="dense")
    assert run_ranks(2, lambda comm: refine(plan, comm, {"x": Dense(torch.ones(3))})) == [plan, plan]


def test_a_refined_plan_round_trips(monkeypatch):
    plan = plan_of({"zen-coo": 1.0, "agsparse": 1.1})
    refined, _ = try_with(plan, {"zen-coo": [[2.0]] * 2, "agsparse": [[1.0]] * 2}, monkeypatch)
    assert type(refined).from_toml(refined.to_toml()) == refined


def test_a_single_worker_has_nothing_to_try():
    plan = make_plan(job(1, gradients=[independent(1, 0.1)]))
    assert run_ranks(1, lambda comm: refine(plan, comm, {"x": ROWS})) == [plan]
