"""Every reduction scheme on synthetic sparse gradients, beside its formula and the planner's pick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from omnizen.bench.errand import send
from omnizen.bench.grid import HOSTS, RATES_MBIT, Point, by_links, full_grid
from omnizen.bench.launch import InLab, Launch
from omnizen.bench.rows import Row, failed, measured
from omnizen.errors import LISTS_METHODS, UserError, nearest

if TYPE_CHECKING:
    from rich.table import Table

    from omnizen.bench.sync_worker import SyncAnswer, Timing
    from omnizen.bench.tables import Kind

PLANNER = "planner"
CLOSE = 1.05
"""A pick counts as right when it takes at most this many times the fastest scheme's time."""
POINT_LIMIT_S = 90.0
SLOWEST_OVER_DENSE = 4.0
"""No scheme should take longer than this many dense reductions."""
START_S = 120.0


def points(
    *, hosts: Sequence[int], rates: Sequence[str], rows: int, width: int, densities: Sequence[float],
    skews: Sequence[str], grid: bool = False,
) -> list[Point]:  # fmt: skip
    """Return the points of all combinations, or those of the full grid on such links; no hosts or rates mean all.

    Raises:
        UserError: a value that no gradient or link can have.
    """
    from omnizen.lab import parse_rate

    rates_mbit = [parse_rate(r) / 1e6 for r in rates]
    if grid:
        for name, given, there in (("hosts", hosts, HOSTS), ("rate", rates_mbit, RATES_MBIT)):
            for value in given:
                if value not in there:
                    raise UserError(
                        f"the grid has no {name} {value:g}; it has {', '.join(f'{v:g}' for v in there)}"
                    )
        return full_grid(hosts or HOSTS, rates_mbit or RATES_MBIT)
    try:
        return [
            Point(hosts=n, rate_mbit=r, rows=rows, width=width, density=d, skew=s)  # type: ignore[arg-type]
            for n, r, d, s in product(hosts, rates_mbit, densities, skews)
        ]
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{first['loc'][0]}: {first['msg'].lower()}, got {first['input']!r}") from None


def run_sync(
    wanted: Sequence[Point],
    *,
    schemes: Sequence[str] = (),
    repeats: int = 5,
    dilation: float | Literal["auto"] = 1.0,
    seed: int = 0,
    enough_s: float | None = None,
    launch: Callable[[int, float], Launch] | None = None,
    on_group: Callable[[str], None] = lambda *_: None,
    on_rows: Callable[[list[Row]], None] = lambda *_: None,
) -> list[Row]:
    """Measure all points, one start of the lab for all that share number of workers and rate.

    Args:
        schemes: catalogue names; empty means all that lose nothing.
        enough_s: repeats and trials take about so long for each scheme and gradient; as usual when None.
        launch: makes what starts the workers, from their number and the rate in Mbit/s.
        on_group: told what was begun and what has ended.
        on_rows: given the rows of each group as soon as they are there; a grid takes hours.
    """
    from omnizen import catalog
    from omnizen.bench.sync_worker import SyncAnswer, SyncJob

    names = [catalog.full_name(name) for name in schemes] or catalog.schemes("row-sparse")
    for name in names:
        if name not in catalog.REDUCERS:
            raise UserError(f"unknown scheme: {nearest(name, catalog.REDUCERS, listed_by=LISTS_METHODS)}")
    if repeats < 1:
        raise UserError(f"repeats must be at least 1, got {repeats}")
    make = launch or (lambda hosts, rate: InLab(hosts, f"{rate:g}mbit", dilation))
    rows: list[Row] = []
    for (hosts, rate_mbit), group in by_links(list(wanted)).items():
        on_group(f"{hosts} workers, {rate_mbit:g} Mbit/s: {len(group)} gradients, {len(names)} schemes")
        slow_down = float(hosts) if dilation == "auto" else dilation
        limit_s = 60.0 + sum(point_limit_s(point, len(names), repeats) * slow_down for point in group)
        job = SyncJob(points=group, schemes=names, repeats=repeats, seed=seed, limit_s=limit_s)
        if enough_s is not None:
            job = job.model_copy(update={"enough_s": enough_s, "trial_s": enough_s})
        start = make(hosts, rate_mbit)
        found, wrong = send(job, "omnizen.bench.sync_worker", SyncAnswer, start, start_s=START_S)
        made_rows = group_rows(group, found, wrong, {"seed": seed})
        on_rows(made_rows)
        rows += made_rows
    return rows


def point_limit_s(point: Point, schemes: int, repeats: int) -> float:
    """Return how long one gradient may take with all schemes, on links that are not slowed down."""
    dense_s = 2 * point.rows * point.width * 4 * 8 / (point.rate_mbit * 1e6)
    return POINT_LIMIT_S + SLOWEST_OVER_DENSE * dense_s * schemes * (1 + repeats)


def group_rows(group: Sequence[Point], found: Sequence[SyncAnswer], bad: str, params: dict[str, Any]) -> list[Row]:
    """Turn the workers' answers into rows: time and bytes of each scheme, and how good the planner's pick was."""
    rows: list[Row] = []
    for number, point in enumerate(group):
        shared: dict[str, Any] = {
            "bench": "sync", "case": point.name, "hosts": point.hosts, "rate_mbit": point.rate_mbit,
        }  # fmt: skip
        if bad:
            rows.append(failed(bad, **shared, method="all", params=params))
            continue
        network = found[0].network
        more = {**params, "network": network.network, "dilation": network.dilation, "kind": point.kind}
        seconds: dict[str, list[float]] = {}
        for timings in zip(*([t for t in a.timings if t.point == number] for a in found), strict=True):
            seconds[timings[0].scheme] = [max(s) for s in zip(*(t.seconds for t in timings), strict=True)]
            rows += scheme_rows(shared, timings, seconds[timings[0].scheme], point, network.dilation, more)
        medians = {scheme: median(samples) for scheme, samples in seconds.items()}
        fastest, pick = fastest_of(seconds), found[0].picks[number]
        formula_pick = found[0].formula_picks[number]
        ratio = medians[pick] / medians[fastest]
        over_dense = medians[pick] / medians["dense"] if "dense" in medians else None
        rows.append(
            measured(
                [ratio],
                **shared,
                method=PLANNER,
                metric="pick_over_fastest",
                unit="",
                params={
                    **more,
                    "pick": pick,
                    "fastest": fastest,
                    "within_5_percent": ratio <= CLOSE,
                    "pick_over_dense": over_dense,
                    "formula_pick": formula_pick,
                    "formula_pick_over_fastest": medians[formula_pick] / medians[fastest],
                },
            )
        )
    return rows


def fastest_of(seconds: Mapping[str, Sequence[float]]) -> str:
    """Return the scheme with the least median among those that were timed to the end.

    The others were clearly behind in the turns that all took, and must not win because later turns were slower.
    """
    most = max(len(samples) for samples in seconds.values())
    return min((s for s in seconds if len(seconds[s]) == most), key=lambda s: median(seconds[s]))


def scheme_rows(
    shared: dict[str, Any], timings: Sequence[Timing], seconds: list[float], point: Point, dilation: float,
    params: dict[str, Any],
) -> list[Row]:  # fmt: skip
    """Return the rows of one scheme on one point; bytes are those of the worker that received most."""
    first = timings[0]
    payload = max(t.payload_rx_bytes for t in timings)
    wire = [t.wire_rx_bytes for t in timings if t.wire_rx_bytes is not None]
    rx_bytes = max(wire) if wire else payload
    least_s = rx_bytes / (point.rate_mbit * 1e6 / 8 / dilation)
    more = {
        **params,
        "payload_rx_bytes": payload,
        "formula_rx_bytes": first.predicted_rx_bytes,
        "payload_over_formula": payload / first.predicted_rx_bytes if first.predicted_rx_bytes else None,
    }
    common = {**shared, "method": first.scheme}
    over = median(seconds) / least_s if least_s else None
    timed = {**more, "predicted_s": first.predicted_s, "over_bytes_per_rate": over}
    return [
        measured(seconds, **common, metric="reduce_s", unit="s", params=timed),
        measured(
            [rx_bytes], **common, metric="rx_bytes", unit="B",
            params={**more, "source": "interface counters" if wire else "meter", "at": "busiest worker"},
        ),
    ]  # fmt: skip


def tables(rows: Sequence[Row]) -> list[Table]:
    """Lay the schemes of each point side by side; the planner's pick is marked, and so is the fastest."""
    from omnizen.bench.tables import table

    points: dict[tuple[str, int, float | None], list[Row]] = {}
    for row in rows:
        points.setdefault((row.case, row.hosts, row.rate_mbit), []).append(row)
    columns: dict[str, Kind] = {
        "scheme": "name", "ms": "number", "predicted\nms": "number", "MB\nreceived": "number",
        "formula\nMB": "number", "": "name",
    }  # fmt: skip
    return [
        table(f"{case}, {hosts} workers, {rate:g} Mbit/s: median over repeats of the slowest worker", columns,
              _lines(of_point), "\n".join(dict.fromkeys(str(r.params["reason"]) for r in _failed(of_point))))
        for (case, hosts, rate), of_point in points.items()
    ]  # fmt: skip


def _failed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.metric == "failed"]


def _lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    picks = next((r.params for r in rows if r.method == PLANNER), {})
    received = {r.method: r.value for r in rows if r.metric == "rx_bytes"}
    lines: list[tuple[str, ...]] = [(row.method, "failed", "", "", "", "") for row in _failed(rows)]
    for row in rows:
        if row.metric == "reduce_s":
            taken, got = row.value, received[row.method]
            assert taken is not None
            assert got is not None
            marks = [name for name in ("pick", "fastest") if picks.get(name) == row.method]
            seconds = (f"{s * 1e3:.1f}" for s in (taken, row.params["predicted_s"]))
            count = (f"{b / 1e6:.3f}" for b in (got, row.params["formula_rx_bytes"]))
            lines.append((row.method, *seconds, *count, ", ".join(marks)))
    return lines


def verdict(rows: Sequence[Row]) -> list[str]:
    """Say in a few lines how good picks, formulas and times were."""
    picks = [r for r in rows if r.method == PLANNER]
    timed = [r for r in rows if r.metric == "reduce_s"]
    if not picks:
        return []
    right = sum(r.params["within_5_percent"] for r in picks)
    slower = [r.params["pick_over_dense"] for r in picks if r.params["pick_over_dense"]]
    by_formula = sum(r.params["formula_pick_over_fastest"] <= CLOSE for r in picks)
    ratios = [r.params["payload_over_formula"] for r in timed if r.params["payload_over_formula"]]
    close = sum(abs(r - 1) <= 0.03 for r in ratios)
    errors = sorted(abs(r.params["predicted_s"] / r.value - 1) for r in timed if r.value)
    return [
        f"planner's pick fastest or within 5 % of it: {right} of {len(picks)} gradients "
        f"({by_formula} by formulas alone, without trying near-ties)",
        f"planner's pick slower than dense by more than 5 %: {sum(r > CLOSE for r in slower)} of {len(slower)}",
        f"payload received within 3 % of the formula: {close} of {len(ratios)}",
        f"predicted time off by {median(errors):.0%} (median), {errors[-1]:.0%} at most",
    ]
