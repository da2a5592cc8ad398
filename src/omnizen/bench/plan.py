"""``omnizen bench plan``: how much longer the planner's pick takes than the best of all it could pick."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from omnizen.bench.plan_cases import RATES_MBIT, SAMPLES, Case, make_case
from omnizen.bench.plan_truth import TABLE, Truth, find_out
from omnizen.bench.rows import Row, measured, quantile
from omnizen.plan.apportion import apportion
from omnizen.plan.layouts import Layout, by_speed, even, sizes
from omnizen.plan.plan import Plan
from omnizen.plan.search import BUCKET_CHOICES
from omnizen.plan.strategies import plan_strategy

CASES, QUICK_CASES = 200, 50
METHODS = ("plan", "formulas", "sync-dense-even")
MEDIAN, HIGH = 0.0, 0.05
"""What the regrets' median and 95th percentile must reach."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One case.

    Args:
        regret: by method, time of the pick over the best, minus 1.
        picks: by method, the pick in words.
        best: the best in words.
        planning_s: seconds that planning took.
    """

    case: Case
    regret: dict[str, float]
    picks: dict[str, str]
    best: str
    planning_s: float


def judge(case: Case) -> Judged:
    """Plan a case from what is measured of it, and try everything."""
    truth = find_out(case)
    began = time.perf_counter()
    plans = {"plan": plan_strategy(truth.facts)}
    planning_s = time.perf_counter() - began
    plans["formulas"] = plan_strategy(truth.facts, simulate=False)
    times = dict(_everything(truth))
    picked = {method: _picked(truth, plan) for method, plan in plans.items()}
    usual = (SAMPLES,) * case.size
    dense = "dense" if truth.scheme_s else ""
    picked["sync-dense-even"] = ("synchronous, even shares, dense", truth.sync_s(usual, BUCKET_CHOICES[0], dense))
    times |= dict(picked.values())
    best = min(times, key=lambda name: times[name])
    regret = {method: seconds / times[best] - 1 for method, (_, seconds) in picked.items()}
    return Judged(case, regret, {method: name for method, (name, _) in picked.items()}, best, planning_s)


def _everything(truth: Truth) -> Iterator[tuple[str, float]]:
    """Return every strategy whose price is known with its time for a sample's worth of progress."""
    case, size = truth.case, truth.case.size
    speed = [1 / float(s) for s in case.cluster.mean_s(np.full(size, float(SAMPLES)))]
    usual, shared = (SAMPLES,) * size, apportion(SAMPLES * size, speed)
    scheme = min(truth.scheme_s, key=lambda s: truth.scheme_s[s]) if truth.scheme_s else ""
    for shares in dict.fromkeys([usual, shared]):
        for bucket_bytes in BUCKET_CHOICES:
            name = f"synchronous, {shares}, {scheme}, buckets of {bucket_bytes}"
            yield name, truth.sync_s(shares, bucket_bytes, scheme)
    price = {p.of: p.samples for p in case.prices}
    for groups in sizes(size)[1:]:
        if (cost := price.get(("groups", groups, 1.0, ""))) is not None:
            total = SAMPLES * size // groups
            for layout in dict.fromkeys([even(size, groups, total), by_speed(speed, groups, total)]):
                yield f"groups {layout.groups}, {layout.samples}", cost * truth.groups_s(layout)
    for (strategy, _, steps, _), cost in price.items():
        if strategy == "local":
            for every in dict.fromkeys([(int(steps),) * size, apportion(int(steps) * size, speed)]):
                yield f"local steps {every}", cost * truth.local_s(every)


def _picked(truth: Truth, plan: Plan) -> tuple[str, float]:
    chosen = plan.execution
    assert chosen is not None
    price = chosen.price or 1.0
    if chosen.strategy == "groups":
        layout = Layout(tuple(tuple(g) for g in chosen.groups), tuple(chosen.batch_shares))
        return f"groups {layout.groups}, {layout.samples}", price * truth.groups_s(layout)
    if chosen.strategy == "local":
        every = tuple(chosen.local_steps)
        return f"local steps {every}", price * truth.local_s(every)
    shares, scheme = tuple(chosen.batch_shares), plan.scheme(TABLE) if truth.scheme_s else ""
    name = f"synchronous, {shares}, {scheme}, buckets of {plan.bucket_bytes}"
    return name, truth.sync_s(shares, plan.bucket_bytes, scheme)


def run_plan(
    cases: int = CASES,
    *,
    first: int = 0,
    most_workers: int = 8,
    on_case: Callable[[Judged], None] = lambda _: None,
    on_rows: Callable[[list[Row]], None] = lambda _: None,
) -> list[Row]:
    """Judge so many cases; rows of regret by method, and of planning time.

    Args:
        on_case: told of each case when it was judged.
        on_rows: given its rows.
    """
    rows = []
    for number in range(first, first + cases):
        judged = judge(make_case(number, most_workers=most_workers))
        on_case(judged)
        on_rows(_rows(judged))
        rows += _rows(judged)
    return rows


def _rows(judged: Judged) -> list[Row]:
    case = judged.case
    rate = next((r for r in RATES_MBIT if f" {r:g} Mbit/s" in case.words), None)
    rows = [
        measured(
            [judged.regret[method]], bench="plan", case=case.name, method=method, hosts=case.size, rate_mbit=rate,
            metric="regret", unit="",
            params={"network": "simulated", "pick": judged.picks[method], "best": judged.best},
        )
        for method in METHODS
    ]  # fmt: skip
    planning = measured(
        [judged.planning_s], bench="plan", case=case.name, method="plan", hosts=case.size, rate_mbit=rate,
        metric="planning_s", unit="s", params={},
    )  # fmt: skip
    return [*rows, planning]


_LAB = {"network": "network", "pick": "pick", "best": "fastest"}


def lab_rows(measured_rows: Sequence[Row]) -> list[Row]:
    """Return regrets from rows that ``omnizen bench sync`` measured in the lab: one for each of its points."""
    found = []
    for row in measured_rows:
        if row.metric != "pick_over_fastest" or row.value is None:
            continue
        regrets = {"plan": row.value - 1, "formulas": row.params["formula_pick_over_fastest"] - 1}
        found += [
            Row(
                bench="plan", case=row.case, method=method, hosts=row.hosts, rate_mbit=row.rate_mbit,
                metric="regret", value=regret, unit="", p20=regret, p80=regret, repeats=1,
                params={name: row.params[of] for name, of in _LAB.items()},
                machine=row.machine, versions=row.versions, commit=row.commit,
            )
            for method, regret in regrets.items()
        ]  # fmt: skip
    return found


def verdict(rows: Sequence[Row]) -> list[str]:
    """Say in a line for each method and kind of network how large the regrets are."""
    lines = []
    keys = dict.fromkeys((str(r.params["network"]), r.method) for r in rows if r.metric == "regret")
    for network, method in keys:
        values = [
            r.value
            for r in rows
            if r.metric == "regret" and r.value is not None and (r.params["network"], r.method) == (network, method)
        ]
        median, high, most = quantile(values, 0.5), quantile(values, 0.95), max(values)
        reached = "reached" if median <= MEDIAN + 1e-9 and high <= HIGH else "NOT reached"
        word = f"; the target (0 and {HIGH:.0%}) is {reached}" if method == "plan" else ""
        lines.append(
            f"{method}, {network}: regret over {len(values)} cases: median {median:.2%}, 95th percentile "
            f"{high:.2%}, largest {most:.1%}{word}"
        )
    planning = [r.value for r in rows if r.metric == "planning_s" and r.value is not None]
    if planning:
        lines.append(f"planning took {quantile(planning, 0.5):.2f} s (median), {max(planning):.2f} s at most")
    return lines
