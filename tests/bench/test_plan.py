"""The planner judged on imagined jobs: the same ones everywhere, everything tried, regrets in rows."""

import numpy as np
import pytest

from omnizen.bench.plan import METHODS, judge, lab_rows, run_plan, verdict
from omnizen.bench.plan_cases import make_case
from omnizen.bench.plan_truth import find_out
from omnizen.bench.rows import Row

SMALL = next(n for n in range(2, 200, 7) if make_case(n, most_workers=2).model.table)


def test_a_number_always_names_the_same_case():
    first, again = make_case(SMALL), make_case(SMALL)
    assert first.name == again.name
    assert np.array_equal(first.cluster.sample_s, again.cluster.sample_s)
    assert first.prices == again.prices
    assert len({make_case(n).name for n in range(30)}) == 30


def test_the_planner_is_told_what_was_measured_and_not_how_it_is():
    truth = find_out(make_case(SMALL, most_workers=2))
    device, cluster = truth.facts.devices[0], truth.case.cluster
    told_s = 32 / device.samples_per_s["32"]
    assert told_s == pytest.approx(float(cluster.mean_s(np.full(2, 32.0))[0]), rel=0.1)
    assert told_s != float(cluster.mean_s(np.full(2, 32.0))[0])
    assert set(truth.scheme_s) >= {"dense", "agsparse", "zen-bitmap"}


def test_picks_are_never_better_than_the_best_and_close_to_it():
    judged = judge(make_case(SMALL, most_workers=2))
    assert set(judged.regret) == set(METHODS)
    assert min(judged.regret.values()) >= 0
    assert judged.regret["plan"] <= 0.05
    assert judged.regret["sync-dense-even"] > judged.regret["plan"]


def test_rows_and_what_is_said_of_them():
    rows = run_plan(1, first=6, most_workers=2)
    assert [(r.bench, r.method, r.metric) for r in rows] == [
        *(("plan", method, "regret") for method in METHODS),
        ("plan", "plan", "planning_s"),
    ]
    said = verdict(rows)
    assert said[0].startswith("plan, simulated: regret over 1 cases")
    assert "planning took" in said[-1]


def test_rows_of_the_lab_become_regrets():
    params = {
        "network": "namespaces, shaped links",
        "pick": "zen-coo",
        "fastest": "agsparse",
        "formula_pick_over_fastest": 1.2,
    }
    row = Row(
        bench="sync", case="x", method="planner", hosts=4, rate_mbit=100.0, metric="pick_over_fastest", value=1.04,
        unit="", p20=1.04, p80=1.04, repeats=1, params=params,
    )  # fmt: skip
    found = {r.method: r.value for r in lab_rows([row])}
    assert found == pytest.approx({"plan": 0.04, "formulas": 0.2})
    assert "median 4.00%" in verdict(lab_rows([row]))[0]
