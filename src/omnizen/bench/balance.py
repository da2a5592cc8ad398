"""Unequal workers: how near balanced batches come to the sum of what the workers get done by themselves.

Reference: Tyagi and Sharma, "OmniLearn", IEEE TPDS 2025 (arXiv:2503.17469); the bound is the sum of the rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from omnizen.bench.balance_worker import METHODS, PLANS, BalanceAnswer, BalanceJob, Trained
from omnizen.bench.errand import send
from omnizen.bench.launch import InLab, Launch
from omnizen.bench.limits import check_counts, check_hosts, check_names, check_positive
from omnizen.bench.rows import Row, failed, measured
from omnizen.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from omnizen.bench.tables import Kind

BATCHES = {"cnn": 256, "lm": 128}
"""Enough that computing takes most of a step; few enough that activations (87 kB a picture) stay below 32 MB:
larger ones the allocator gives back in every step, which makes each sample slower."""
SETTLED_AFTER = 4
"""Steps after the last change that do not count: other sizes begin some steps after they were agreed on."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run.

    Args:
        cpu: each host's relative speed, 1 for the fastest.
        rate: of each link, before dilation ("1gbit").
        dilation: factor that slows links and processors, or ``auto``.
        batch: samples of a worker where batches are even.
        steps: of a method; ``even`` takes a quarter.
        pin: keep each worker on one core.
        alone_s: seconds for which each worker is measured by itself.
    """

    case: str = "cnn"
    hosts: int = 4
    cpu: tuple[float, ...] = ()
    rate: str = "1gbit"
    dilation: float | Literal["auto"] = "auto"
    batch: int | None = None
    methods: tuple[str, ...] = ("even", "balanced-from-even", "balanced")
    steps: int = 30
    settle_steps: int = 2
    alone_s: float = 5.0
    limit_s: float = 600.0
    seed: int = 0
    pin: bool = False

    def __post_init__(self) -> None:
        check_names("case", [self.case], PLANS)
        check_names("unknown method", self.methods, METHODS)
        check_hosts(self.hosts, self.cpu)
        if self.steps <= self.settle_steps + SETTLED_AFTER:
            raise UserError(f"more than {self.settle_steps + SETTLED_AFTER} steps, got {self.steps}")
        check_counts(batch=self.batch)
        check_positive(alone=self.alone_s)
        if not self.methods:
            raise UserError(f"no method to run; allowed: {', '.join(METHODS)}")


def run_balance(
    settings: Settings, *, launch: Launch | None = None, on_line: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """Run all methods in one lab and return their rows; a failed run gives one ``failed`` row."""
    from omnizen.lab import parse_rate

    start: Launch = launch or InLab(settings.hosts, settings.rate, settings.dilation, settings.cpu)
    batch = settings.batch or BATCHES[settings.case]
    shared: dict[str, Any] = {
        "bench": "balance", "case": settings.case, "hosts": settings.hosts,
        "rate_mbit": parse_rate(settings.rate) / 1e6,
    }  # fmt: skip
    params = {
        "batch": batch, "cpu": list(settings.cpu), "dilation": settings.dilation, "plan": PLANS[settings.case],
        "seed": settings.seed, "pin": settings.pin,
    }  # fmt: skip
    job = BalanceJob(
        case=settings.case, batch=batch, methods=settings.methods, alone_s=settings.alone_s, steps=settings.steps,
        settle_steps=settings.settle_steps, limit_s=settings.limit_s, seed=settings.seed, pin=settings.pin,
    )  # fmt: skip
    found, wrong = send(job, "omnizen.bench.balance_worker", BalanceAnswer, start, on_line=on_line)
    if wrong:
        return [failed(wrong, method="balanced", params=params, **shared)]
    return rows_of(settings, batch, found, params, shared)


def rows_of(
    settings: Settings, batch: int, found: Sequence[BalanceAnswer], params: dict[str, Any], shared: dict[str, Any]
) -> list[Row]:
    """Turn answers into rows."""
    rates = [batch / median(a.alone_s) for a in found]
    beside = [batch / median(a.beside_s) for a in found]
    rows = [
        measured(
            [sum(each)], method=method, metric="samples_per_s", unit="samples/s",
            params={**params, "by_rank": [round(rate, 2) for rate in each]}, **shared,
        )
        for method, each in (("alone", rates), ("beside each other", beside))
    ]  # fmt: skip
    for name in settings.methods:
        first = found[0].trained[name]
        counted = settled(first, settings.settle_steps)
        seconds = [max(a.trained[name].step_s[step] for a in found) for step in counted]
        fractions = [first.samples[step] / s / sum(rates) for step, s in zip(counted, seconds, strict=True)]
        about = {
            **params, "sizes": list(first.sizes), "first_sizes": list(first.first_sizes),
            "adjusted": first.adjusted, "steps": len(first.step_s),
        }  # fmt: skip
        named: dict[str, Any] = {"method": name, "params": about, **shared}
        rows.append(measured(fractions, metric="fraction_of_sum_rate", unit="", **named))
        less = sum(rates) / sum(beside)
        rows.append(measured([f * less for f in fractions], metric="fraction_of_sum_beside", unit="", **named))
        rows.append(measured(seconds, metric="step_s", unit="s", **named))
        rows.append(measured([len(first.adjusted)], metric="adjustments", unit="", **named))
    return rows


def settled(trained: Trained, settle_steps: int) -> list[int]:
    """Return the steps that count: those after the last change of the first half, and what came later."""
    steps = len(trained.step_s)
    early = [step for step in trained.adjusted if step < 2 * steps // 3]
    return list(range(max([settle_steps, *(step + SETTLED_AFTER for step in early)]), steps))


def table(rows: Sequence[Row]) -> Table:
    """Lay the methods side by side."""
    from omnizen.bench.tables import table as lay

    found = {(r.method, r.metric): r for r in rows}
    lines = []
    for method in dict.fromkeys(r.method for r in rows):
        fraction, step = found.get((method, "fraction_of_sum_rate")), found.get((method, "step_s"))
        if fraction is None or step is None:
            continue
        sizes = ", ".join(map(str, fraction.params["sizes"]))
        count = found[method, "adjustments"]
        beside = found[method, "fraction_of_sum_beside"]
        numbers = (f"{fraction.value:.3f}", f"{beside.value:.3f}", f"{step.value:.3f}", f"{count.value:g}")
        lines.append((method, *numbers, sizes))
    title = f"{rows[0].case}, {rows[0].hosts} workers, {rows[0].rate_mbit:g} Mbit/s links"
    failures = "\n".join(f"failed: {r.params['reason']}" for r in rows if r.metric == "failed")
    columns: dict[str, Kind] = {"batches": "name"}
    heads = ("of the sum\nof rates", "of those\nat once", "s/step", "adjustments")
    columns |= dict.fromkeys(heads, "number")
    return lay(title, {**columns, "sizes": "text"}, lines, failures)
