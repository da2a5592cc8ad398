"""From the workers' answers to rows, and from rows to a table that people read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from omnizen.bench.job import Answer
from omnizen.bench.rows import Row, failed, measured, quantile

if TYPE_CHECKING:
    from rich.table import Table

    from omnizen.bench.tables import Kind

REFERENCES = ("ddp-sparse", "ddp")


@dataclass(frozen=True)
class Trial:
    """One run of one method: all ranks' answers, or the reason why there are none."""

    method: str
    answers: list[Answer] = field(default_factory=list)
    failed: str = ""

    @property
    def losses(self) -> list[float]:
        """Mean over ranks of each step's loss, from the first step on."""
        return [fmean(step) for step in zip(*(a.losses for a in self.answers), strict=False)]

    @property
    def step_s(self) -> list[float]:
        """Seconds of each timed step at the slowest rank."""
        return [max(step) for step in zip(*(a.step_s for a in self.answers), strict=False)]

    @property
    def items_per_s(self) -> float:
        """Tokens or samples of all ranks together in a second of timed steps."""
        return sum(a.items_per_step for a in self.answers) * len(self.step_s) / sum(self.step_s)


@dataclass(frozen=True)
class Setting:
    """What all rows of one benchmark share.

    Args:
        unit: ``tokens`` or ``samples``.
        rate_mbit: of each link before dilation.
    """

    case: str
    hosts: int
    rate_mbit: float | None
    unit: str
    params: dict[str, Any] = field(default_factory=dict)


def e2e_rows(setting: Setting, trials: Sequence[Trial]) -> list[Row]:
    """Turn all trials of one case into rows, methods in the order of their first trial."""
    by_method: dict[str, list[Trial]] = {}
    for trial in trials:
        by_method.setdefault(trial.method, []).append(trial)
    good = {m: [t for t in ts if not t.failed] for m, ts in by_method.items()}
    losses = {m: ts[0].losses for m, ts in good.items() if ts}
    common = min((len(t.losses) for ts in good.values() for t in ts), default=0)
    reference = next((m for m in REFERENCES if m in losses), None)
    rows: list[Row] = []
    for method, attempts in by_method.items():
        shared: dict[str, Any] = {
            "bench": "e2e", "case": setting.case, "method": method,
            "hosts": setting.hosts, "rate_mbit": setting.rate_mbit,
        }  # fmt: skip
        for attempt in attempts:
            if attempt.failed:
                rows.append(failed(attempt.failed, **shared, params=setting.params))
        if good[method]:
            rows += _method_rows(shared, setting, good[method], losses, common, reference)
    return rows


def _method_rows(
    shared: dict[str, Any], setting: Setting, trials: list[Trial], losses: dict[str, list[float]],
    common: int, reference: str | None,
) -> list[Row]:  # fmt: skip
    method, first = trials[0].method, trials[0].answers[0]
    factor = first.network.dilation
    params = {
        **setting.params,
        "network": first.network.network,
        "dilation": factor,
        "warmup_steps": first.warmup_steps,
        "timed_steps": [len(t.step_s) for t in trials],
        "setup_s": round(max(a.setup_s for a in trials[0].answers), 3),
    }

    def row(metric: str, unit: str, samples: Sequence[float], **more: object) -> Row:
        return measured(samples, **shared, metric=metric, unit=unit, params={**params, **more})

    speeds = [t.items_per_s for t in trials]
    steps = [s for t in trials for s in t.step_s]
    worst = [max(a.rx_bytes_per_step for a in t.answers) for t in trials]
    mean = fmean(a.rx_bytes_per_step for t in trials for a in t.answers)
    step_s, source = quantile(steps, 0.5), first.bytes_source
    rows = [
        row(f"{setting.unit}_per_s", f"{setting.unit}/s", speeds, undilated=quantile(speeds, 0.5) * factor),
        row("step_s", "s", steps, undilated=step_s / factor, compute_s=first.compute_s, schemes=first.schemes),
        row("rx_bytes_per_step", "B", worst, at="busiest worker", mean_over_workers=mean, source=source),
    ]
    if common:
        samples = [t.losses[common - 1] for t in trials]
        rows.append(row("loss", "nats", samples, step=common, **difference(losses, method, reference, common)))
    predicted = [t.answers[0].predicted_step_s for t in trials]
    known = [p for p in predicted if p is not None]
    if known:
        rows.append(row("predicted_step_s", "s", known, measured_s=step_s))
    return rows


def difference(losses: dict[str, list[float]], method: str, reference: str | None, steps: int) -> dict[str, Any]:
    """Compare a method's losses with the reference's over their common steps."""
    if reference is None or method == reference:
        return {"reference": reference}
    return {
        "reference": reference,
        "max_relative_difference": max_relative(losses[method][:steps], losses[reference][:steps]),
    }


def max_relative(found: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest relative difference of two sequences.

    Example:
        >>> max_relative([1.0, 2.2], [1.0, 2.0])
        0.10000000000000009
    """
    return max((abs(a - b) / max(abs(b), 1e-12) for a, b in zip(found, expected, strict=True)), default=0.0)


def e2e_table(rows: Sequence[Row]) -> Table:
    """Lay the methods side by side, with speed as a multiple of the first method's."""
    from omnizen.bench.tables import table

    found = {(r.method, r.metric): r for r in rows}
    methods = list(dict.fromkeys(r.method for r in rows))
    speeds = {m: r for (m, metric), r in found.items() if metric.endswith("_per_s")}
    base = next((speeds[m].value for m in methods if m in speeds), None)
    first = rows[0]
    rate = "links as they are" if first.rate_mbit is None else f"{first.rate_mbit:g} Mbit/s links"
    unit = next(iter(speeds.values())).unit if speeds else "items/s"
    columns: dict[str, Kind] = {"method": "name"}
    headings = (unit, "times\nfirst", "s/step", "plan's\ns/step", "MB/step\nreceived", "loss", "loss\noff by")
    columns |= dict.fromkeys(headings, "number")
    lines, failures = [], []
    for method in methods:
        bad = found.get((method, "failed"))
        if method not in speeds:
            lines.append((method, "failed", *[""] * 6))
            failures.append(f"{method} failed: {bad.params['reason'] if bad else 'no result'}")
            continue
        step, received, loss = (found.get((method, m)) for m in ("step_s", "rx_bytes_per_step", "loss"))
        guess = found.get((method, "predicted_step_s"))
        speed = speeds[method].value
        off = loss.params.get("max_relative_difference") if loss else None
        lines.append(
            (
                method,
                f"{speed:,.0f}" if speed else "",
                f"{speed / base:.2f}" if speed and base else "",
                _number(step, "{:.3f}"),
                _number(guess, "{:.3f}"),
                _number(received, "{:.2f}", 1e-6),
                _number(loss, "{:.4f}"),
                "" if off is None else f"{off:.1e}",
            )
        )
    return table(f"{first.case}, {first.hosts} workers, {rate}", columns, lines, "\n".join(failures))


def _number(row: Row | None, form: str, scale: float = 1.0) -> str:
    return "" if row is None or row.value is None else form.format(row.value * scale)
