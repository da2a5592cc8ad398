"""From trained strategies to rows: predictions beside measurements, the knee of groups, and the planner's regret.

Regret needs prices in samples. They are drawn, not measured: a case is a measured rate of every strategy, and a
price drawn for each kind. What a pick costs is then ``price / measured samples a second``, and so is the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from omnizen.bench.plan_cases import draw_prices
from omnizen.bench.rows import Row, measured, quantile
from omnizen.bench.strategies_trial import candidates
from omnizen.bench.strategies_worker import Found
from omnizen.measure.facts import Facts, PriceFacts
from omnizen.plan.clusters import cluster_of, update_bytes
from omnizen.plan.efficiency import of_layout, saturation
from omnizen.plan.executions import Candidate, priced_as
from omnizen.plan.layouts import Layout
from omnizen.plan.plan import Execution
from omnizen.plan.strategies import plan_strategy, replace_rate, simulated_rate


@dataclass(frozen=True, slots=True)
class Trained:
    """A strategy, what formulas and simulation expect of it, and what was measured.

    Args:
        efficiency_s: seconds an update by the formula of compute groups; None for others.
        update_s: measured, by round.
        samples_per_s: likewise.
    """

    candidate: Candidate
    simulated_s: float
    efficiency_s: float | None
    update_s: Sequence[float]
    samples_per_s: Sequence[float]

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.candidate.groups)

    @property
    def even(self) -> bool:
        """Whether all ranks have equal shares, in groups of neighbours."""
        flat = [rank for group in self.candidate.groups for rank in group]
        return len(set(self.candidate.samples)) == 1 and flat == sorted(flat)

    @property
    def name(self) -> str:
        """In words, different for all strategies of a configuration."""
        c = self.candidate
        if c.strategy == "local":
            equal = len(set(c.local_steps)) == 1
            return f"local steps {c.local_steps[0] if equal else ', '.join(map(str, c.local_steps))}"
        shares = "even" if self.even else f"shares {', '.join(map(str, c.samples))}"
        return f"sync, {shares}" if c.strategy == "sync" else f"{self.groups} groups, {shares}"


def judge(
    found: Found, kinds: Sequence[str], draws: int, shared: dict[str, Any], about: dict[str, Any]
) -> list[Row]:
    """Return all rows of one configuration."""
    facts = Facts.from_toml(found.facts)
    about = {**about, "batch": found.batch}
    trained = list(_trained(facts, found, kinds))
    rows = [_row(each, shared, about) for each in trained]
    if "groups" in kinds:
        rows.append(_saturation(trained, shared, {**about, "facts": found.facts}))
    if set(kinds) == {"sync", "groups", "local"}:
        for seed in range(draws):
            rows += _regret(facts, trained, seed, shared, about)
    return rows


def _trained(facts: Facts, found: Found, kinds: Sequence[str]) -> Iterator[Trained]:
    cluster = cluster_of(facts)
    for candidate, update_s, rate in zip(
        candidates(facts, kinds), found.update_s, found.samples_per_s, strict=True
    ):
        simulated = replace_rate(candidate, simulated_rate(facts, cluster, candidate))
        efficiency_s = None
        if candidate.strategy != "local":
            layout = Layout(candidate.groups, candidate.samples)
            members = max(len(group) for group in candidate.groups)
            efficiency_s = of_layout(facts, layout, nbytes=int(update_bytes(facts, members))).update_s
        yield Trained(candidate, simulated.update_s, efficiency_s, update_s, rate)


def _row(each: Trained, shared: dict[str, Any], about: dict[str, Any]) -> Row:
    c, value = each.candidate, quantile(each.update_s, 0.5)
    params = {
        **about, "strategy": c.strategy, "groups": [list(g) for g in c.groups], "shares": list(c.samples),
        "local_steps": list(c.local_steps), "schemes": {t.name: t.scheme for t in c.plan.tensors},
        "even": each.even, "samples_per_s": quantile(each.samples_per_s, 0.5),
        "formula_s": c.update_s, "simulated_s": each.simulated_s, "efficiency_s": each.efficiency_s,
        "formula_over_measured": c.update_s / value, "simulated_over_measured": each.simulated_s / value,
        "efficiency_over_measured": None if each.efficiency_s is None else each.efficiency_s / value,
    }  # fmt: skip
    return measured(each.update_s, **shared, method=each.name, metric="update_s", unit="s", params=params)


def _saturation(trained: Sequence[Trained], shared: dict[str, Any], about: dict[str, Any]) -> Row:
    """Compare the number of groups beyond which updates come no faster, over even layouts."""
    even = {t.groups: t for t in trained if t.even and t.candidate.strategy != "local"}
    by_measure = saturation({g: quantile(t.update_s, 0.5) for g, t in even.items()})
    params = {
        **about,
        "efficiency": saturation({g: t.efficiency_s for g, t in even.items() if t.efficiency_s is not None}),
        "simulated": saturation({g: t.simulated_s for g, t in even.items()}),
    }
    return measured(
        [float(by_measure)], **shared, method="groups", metric="saturation_groups", unit="groups", params=params
    )


def _regret(
    facts: Facts, trained: Sequence[Trained], seed: int, shared: dict[str, Any], about: dict[str, Any]
) -> Iterator[Row]:
    """Let the planner pick at drawn prices, and compare with the best of what was trained."""
    prices = draw_prices(facts.world_size, np.random.default_rng(seed))
    told = facts.model_copy(update={"prices": list(prices)})
    known = {price.of: price for price in prices}
    times = {t.name: cost / quantile(t.samples_per_s, 0.5) for t in trained if (cost := _price(t, known))}
    best = min(times, key=lambda name: times[name])
    plans = {"plan": plan_strategy(told), "formulas": plan_strategy(told, simulate=False)}
    picks = {method: _named(trained, plan.execution) for method, plan in plans.items()}
    picks["sync-even"] = next(t.name for t in trained if t.candidate.strategy == "sync" and t.even)
    for method, pick in picks.items():
        params = {
            **about, "cases": "measured samples/s, drawn prices", "draw": seed, "pick": pick, "best": best,
            "prices": {f"{p.strategy} {p.groups if p.strategy == 'groups' else p.local_steps:g}": p.samples
                       for p in prices},
        }  # fmt: skip
        yield measured(
            [times[pick] / times[best] - 1], **shared, method=method, metric="regret", unit="", params=params
        )


def _price(each: Trained, known: dict[tuple[str, int, float, str], PriceFacts]) -> float | None:
    if each.candidate.strategy == "sync":
        return 1.0
    price = known.get(priced_as(each.candidate))
    return None if price is None else price.samples


def _named(trained: Sequence[Trained], chosen: Execution | None) -> str:
    assert chosen is not None
    key = (chosen.strategy, chosen.groups, chosen.batch_shares, chosen.local_steps)
    return next(
        t.name
        for t in trained
        if key
        == (
            t.candidate.strategy,
            [list(g) for g in t.candidate.groups],
            list(t.candidate.samples),
            list(t.candidate.local_steps),
        )
    )
