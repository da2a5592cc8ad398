"""Time to a target loss, search included: the automatic optimizer beside fixed ways to train on unequal workers.

Reference: Hadjis et al. 2016, Omnivore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from omnizen.bench.auto_worker import AutoAnswer, AutoJob
from omnizen.bench.errand import send
from omnizen.bench.launch import InLab, Launch
from omnizen.bench.limits import check_counts, check_hosts, check_names, check_positive
from omnizen.bench.rows import Row, failed, measured
from omnizen.errors import UserError, nearest
from omnizen.plan.tuner.settings import Search

if TYPE_CHECKING:
    from rich.table import Table

METHODS = ("auto", "best-fixed", "sync-even-m0.9", "async-m0.9")
CASES = {"cnn": (256, 0.6, 0.02), "lm": (64, 5.6, 0.5)}
"""Batch of a group, target loss, and step size that is usual with momentum 0.9 and one group."""
FACTORS, MOMENTA = (0.25, 1.0), (0.0, 0.6, 0.9)
"""Step sizes, as multiples of the usual one, and momenta that ``best-fixed`` tries for each number of groups."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run.

    Args:
        cpu: each host's relative speed, 1 for the fastest.
        rate: of each link, before dilation ("100mbit").
        dilation: factor that slows links and processors, or ``auto``.
        batch: samples of each group's batch; the case's by default.
        target: mean of the last ``smooth`` losses that ends a run; the case's by default.
        most_s: seconds after which a run ends without having reached it.
        probe_s: seconds of a probe.
        search: how the tuner searches.
        overhead: share of ``most_s`` that the tuner may spend on probes.
    """

    case: str = "cnn"
    hosts: int = 4
    cpu: tuple[float, ...] = ()
    rate: str = "100mbit"
    dilation: float | Literal["auto"] = "auto"
    batch: int | None = None
    target: float | None = None
    methods: tuple[str, ...] = METHODS
    most_s: float = 120.0
    probe_s: float = 4.0
    search: str = "model"
    overhead: float = 0.10
    smooth: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        check_names("case", [self.case], CASES)
        check_names("unknown method", self.methods, METHODS)
        check_hosts(self.hosts, self.cpu)
        check_positive(seconds=self.most_s, probe=self.probe_s, target=self.target)
        check_counts(batch=self.batch, smooth=self.smooth)
        if not 0 < self.overhead <= 1:
            raise UserError(f"overhead is a share of the seconds, above 0 and at most 1, got {self.overhead:g}")
        if self.search not in get_args(Search):
            raise UserError(f"search: {nearest(self.search, get_args(Search))}")
        if not self.methods:
            raise UserError(f"no method to run; allowed: {', '.join(METHODS)}")


def run_auto(
    settings: Settings,
    *,
    launch: Launch | None = None,
    on_line: Callable[[str], None] = lambda _: None,
    on_rows: Callable[[list[Row]], None] = lambda _: None,
) -> list[Row]:
    """Run all methods, each in a lab of its own, and return their rows.

    Args:
        on_rows: given each run's row as soon as it is there.
    """
    start: Launch = launch or InLab(settings.hosts, settings.rate, settings.dilation, settings.cpu)
    rows: list[Row] = []
    for method in settings.methods:
        on_line(f"-- {method}")
        if method == "best-fixed":
            found = _best_fixed(settings, start, on_line)
        else:
            found = iter([_row(settings, method, method, _job(settings, method), start, on_line)])
        for row in found:
            on_rows([row])
            rows.append(row)
    return rows


def points(settings: Settings) -> list[tuple[int, float, float]]:
    """Return what ``best-fixed`` tries: (groups, step size, momentum)."""
    from omnizen.plan.layouts import sizes

    usual = CASES[settings.case][2]
    return [(g, usual * f, m) for g in sizes(settings.hosts) for f in FACTORS for m in MOMENTA]


def _best_fixed(settings: Settings, start: Launch, on_line: Callable[[str], None]) -> Iterator[Row]:
    """Try every point; the table of all of them, and the best again under the method's own name."""
    rows = []
    for groups, step, momentum in points(settings):
        name = f"fixed-g{groups}-lr{step:.3g}-m{momentum:g}"
        job = _job(settings, "best-fixed", (groups, step, momentum))
        rows.append(_row(settings, name, "best-fixed", job, start, on_line))
        yield rows[-1]
    reached = [r for r in rows if r.metric == "time_to_target_s"]
    if reached:
        yield _named(min(reached, key=lambda r: r.value or 0.0))


def _named(row: Row) -> Row:
    from dataclasses import replace

    return replace(row, method="best-fixed", params={**row.params, "found": row.method})


def _job(settings: Settings, method: str, point: tuple[int, float, float] | None = None) -> dict[str, Any]:
    batch, target, usual = CASES[settings.case]
    fixed = {
        "auto": None, "best-fixed": point, "sync-even-m0.9": (1, usual, 0.9),
        "async-m0.9": (settings.hosts, usual, 0.9),
    }[method]  # fmt: skip
    return {
        "case": settings.case, "batch": settings.batch or batch, "fixed": fixed, "even": method == "sync-even-m0.9",
        "target": target if settings.target is None else settings.target, "most_s": settings.most_s, "step": usual,
        "probe_s": settings.probe_s, "overhead": settings.overhead, "search": settings.search,
        "smooth": settings.smooth, "limit_s": 2 * settings.most_s + 120, "seed": settings.seed,
    }  # fmt: skip


def _row(
    settings: Settings, name: str, method: str, job: dict[str, Any], start: Launch, on_line: Callable[[str], None]
) -> Row:
    from omnizen.lab import parse_rate

    shared: dict[str, Any] = {
        "bench": "auto", "case": settings.case, "method": name, "hosts": settings.hosts,
        "rate_mbit": parse_rate(settings.rate) / 1e6,
    }  # fmt: skip
    params: dict[str, Any] = {
        "batch": job["batch"], "target": job["target"], "cpu": list(settings.cpu), "dilation": settings.dilation,
        "most_s": settings.most_s, "smooth": settings.smooth, "seed": settings.seed,
    }  # fmt: skip
    if method == "auto":
        params |= {"probe_s": settings.probe_s, "search": settings.search, "overhead_allowed": settings.overhead}
    answers, wrong = send(AutoJob(**job), "omnizen.bench.auto_worker", AutoAnswer, start, on_line=on_line)
    found = next((a for a in answers if a.rank == 0), None)
    if found is not None:
        params |= {
            "point": found.point, "updates": found.updates, "staleness": found.staleness,
            "predicted_and_measured_update_s": found.update_s,
        }  # fmt: skip
        if method == "auto":
            params |= {"overhead": round(found.overhead, 3), "notes": found.notes}
    if wrong or found is None or found.reached_s is None:
        return failed(wrong or f"not reached within {settings.most_s:g} s", params=params, **shared)
    return measured([found.reached_s], metric="time_to_target_s", unit="s", params=params, **shared)


def table(rows: Sequence[Row]) -> Table:
    """Lay the methods side by side."""
    from omnizen.bench.tables import Kind
    from omnizen.bench.tables import table as lay

    lines = []
    for row in rows:
        value = "not reached" if row.value is None else f"{row.value:.1f}"
        groups, step, momentum = row.params.get("point") or ("", "", "")
        about = row.params.get("reason", "") if row.value is None else ""
        if "overhead" in row.params:
            about = f"{row.params['overhead']:.0%} of the time on probes that were not gone on with {about}"
        lines.append((row.method, value, str(groups), f"{step:.3g}" if step else "", str(momentum), about))
    first = rows[0]
    title = (
        f"{first.case}, {first.hosts} workers, {first.rate_mbit:g} Mbit/s links, to loss {first.params['target']}"
    )
    columns: dict[str, Kind] = {"method": "name"}
    columns |= dict.fromkeys(("s to target", "groups", "lr", "momentum"), "number")
    return lay(title, {**columns, "": "text"}, lines)


def decisions(rows: Sequence[Row]) -> Table | None:
    """Lay out what the tuner expected, tried, rejected and chose; None without a tuned run."""
    from omnizen.bench.tables import table as lay

    notes = next((r.params["notes"] for r in rows if "notes" in r.params), None)
    if not notes:
        return None
    return lay("what the tuner did", {"phase": "name", "": "name", "decision": "text"}, [tuple(n) for n in notes])
