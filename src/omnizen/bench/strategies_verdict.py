"""What many rows of ``omnizen bench strategies`` say together: how near predictions are, and what picks cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omnizen.bench.rows import Row, quantile

if TYPE_CHECKING:
    from rich.table import Table

    from omnizen.bench.tables import Kind

NEAR_EFFICIENCY, NEAR_SIMULATED = 0.15, 0.10
"""How near predictions must be: of compute groups by formula, and of all strategies by simulation."""
MEDIAN, HIGH = 0.0, 0.05
"""What the regrets' median and 95th percentile must reach."""
CASES = 60
"""Of so many cases at least."""
WAYS = ("formula", "simulated", "efficiency")


def configuration(row: Row) -> tuple[Any, ...]:
    """Return what rows of one configuration have in common."""
    p = row.params
    return row.case, row.hosts, row.rate_mbit, tuple(p.get("cpu", ())), p.get("batch"), p.get("started", "")


def table(rows: Sequence[Row]) -> Table:
    """Lay strategies out beside each other, all configurations in one table."""
    from omnizen.bench.tables import table as lay

    lines = []
    for row in rows:
        if row.metric != "update_s" or row.value is None:
            continue
        p = row.params
        what = f"{row.case} {p['batch']}, {row.hosts} hosts"
        ratios = [p[f"{way}_over_measured"] for way in WAYS]
        cells = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        spread = f"{row.p20:.3f} to {row.p80:.3f}"
        lines.append((what, row.method, f"{row.value:.3f}", spread, f"{p['samples_per_s']:,.0f}", *cells))
    columns: dict[str, Kind] = {"": "name", "strategy": "name"}
    headings = (
        "s an\nupdate",
        "20th to\n80th",
        "samples/s",
        "formula over\nmeasured",
        "simulated",
        "groups'\nformula",
    )
    columns |= dict.fromkeys(headings, "number")
    return lay("Seconds between updates, and predictions as multiples of them", columns, lines)


def verdict(rows: Sequence[Row]) -> list[str]:
    """Say how near predictions are, how often the knee was right, and what the planner's picks cost."""
    times = [r for r in rows if r.metric == "update_s"]
    lines = _near(times, "efficiency", NEAR_EFFICIENCY, "of synchronous training and groups")
    lines += _near(times, "simulated", NEAR_SIMULATED, "of all strategies")
    for kind in dict.fromkeys(str(r.params["strategy"]) for r in times):
        of_kind = [r for r in times if r.params["strategy"] == kind]
        lines += _near(of_kind, "simulated", NEAR_SIMULATED, f"of {kind}")
        lines += _near(of_kind, "formula", NEAR_EFFICIENCY, f"of {kind}")
    lines += _every(times)
    knees = [r for r in rows if r.metric == "saturation_groups"]
    for way in ("efficiency", "simulated"):
        right = sum(r.params[way] == r.value for r in knees)
        if knees:
            lines.append(f"saturation by {_WORDS[way]}: right in {right} of {len(knees)} configurations")
    for method in dict.fromkeys(r.method for r in rows if r.metric == "regret"):
        values = [r.value for r in rows if (r.metric, r.method) == ("regret", method) and r.value is not None]
        median, high = quantile(values, 0.5), quantile(values, 0.95)
        reached = "reached" if median <= MEDIAN + 1e-9 and high <= HIGH else "NOT reached"
        few = f" so far: it asks for {CASES} cases" if len(values) < CASES else ""
        word = f"; the target (0 and {HIGH:.0%}) is {reached}{few}" if method == "plan" else ""
        lines.append(
            f"{method}: regret over {len(values)} cases (measured samples/s, drawn prices): median {median:.2%}, "
            f"95th percentile {high:.2%}, largest {max(values):.1%}{word}"
        )
    return lines


_WORDS = {"formula": "the planner's formulas", "simulated": "simulation", "efficiency": "the formula of groups"}


def _near(rows: Sequence[Row], way: str, near: float, what: str) -> list[str]:
    found = [r.params[f"{way}_over_measured"] for r in rows]
    ratios = [ratio for ratio in found if ratio is not None]
    if not ratios:
        return []
    count = sum(abs(ratio - 1) <= near for ratio in ratios)
    spread = f"{quantile(ratios, 0.1):.2f} to {quantile(ratios, 0.9):.2f}, median {quantile(ratios, 0.5):.2f}"
    return [f"{_WORDS[way]}, seconds {what}: within {near:.0%} {count} of {len(ratios)} (10th to 90th {spread})"]


def _every(times: Sequence[Row]) -> list[str]:
    """Count configurations in which the seconds of every number of groups are near."""
    by_configuration: dict[tuple[Any, ...], list[float]] = {}
    for row in times:
        ratio = row.params["efficiency_over_measured"]
        if ratio is not None and row.params["even"]:
            by_configuration.setdefault(configuration(row), []).append(ratio)
    whole = [ratios for ratios in by_configuration.values() if len(ratios) > 1]
    if not whole:
        return []
    good = sum(all(abs(ratio - 1) <= NEAR_EFFICIENCY for ratio in ratios) for ratios in whole)
    return [f"every number of groups within {NEAR_EFFICIENCY:.0%}: in {good} of {len(whole)} configurations"]
