"""Local steps on unequal hosts beside synchronous training, with and without the slow ones, at two budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from omnizen.bench.errand import send
from omnizen.bench.launch import InLab, Launch
from omnizen.bench.limits import check_counts, check_positive
from omnizen.bench.rows import Row, failed, measured
from omnizen.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from omnizen.bench.local_worker import LocalAnswer, LocalJob, Reading, Trained

START_S = 120.0
"""Slow hosts take long to import torch."""
TARGET, AT_TIME, AT_EPOCHS, RATE = "time_to_target_s", "accuracy_at_time", "accuracy_at_epochs", "samples_per_s"


def run_local(
    *, case: str, cpu: Sequence[float], rate: str, methods: Sequence[str], seeds: int, samples: int, batch: int,
    lr: float, steps: int, pool: float, seconds: float, epochs: float, target: float,
    launch: Launch | None = None, on_line: Callable[[str], None] = lambda _: None,
) -> list[Row]:  # fmt: skip
    """Train by all methods from all seeds within one start of the hosts; returns four rows a method.

    Args:
        cpu: speed of each host's processor, 1 being a core.
        steps: local steps of the fastest host in a round.
        seconds, epochs: budgets at which accuracy is compared.
        target: accuracy to reach.
        launch: where workers run; the lab by default.

    Raises:
        UserError: an argument with which nothing can be compared.
    """
    from omnizen.bench.local_worker import METHODS, LocalAnswer, LocalJob
    from omnizen.lab import parse_rate

    names = list(methods) or list(METHODS)
    if len(cpu) < 2:
        raise UserError(f"at least 2 hosts, got {len(cpu)}")
    check_counts(seeds=seeds, samples=samples, batch=batch, steps=steps)
    check_positive(lr=lr, pool=pool, seconds=seconds, epochs=epochs)
    if not 0 < target < 1:
        raise UserError(f"the target is an accuracy between 0 and 1, got {target:g}")
    cap_s = 1.5 * seconds
    limit_s = START_S + 2 * cap_s * len(names) * seeds
    start = launch or InLab(len(cpu), rate, 1.0, tuple(cpu))
    job = LocalJob(
        case=case, methods=names, cpu=list(cpu), seeds=seeds, samples=samples, batch=batch, lr=lr, steps=steps,
        pool=pool, seconds=seconds, epochs=epochs, cap_s=cap_s, limit_s=limit_s,
    )  # fmt: skip
    for name in names:
        job.strategy(name)  # refuses an unknown one
    found, wrong = send(job, "omnizen.bench.local_worker", LocalAnswer, start, on_line=on_line)
    shared: dict[str, Any] = {
        "bench": "local",
        "case": case,
        "hosts": len(cpu),
        "rate_mbit": parse_rate(rate) / 1e6,
    }
    if wrong:
        return [failed(wrong, **shared, method="all", params={"cpu": list(cpu)})]
    return rows_of(job, found[0], shared, target)


def rows_of(job: LocalJob, answer: LocalAnswer, shared: dict[str, Any], target: float) -> list[Row]:
    """Turn rank 0's tests into rows: time to the target, accuracy at both budgets, speed."""
    rows = []
    common = {
        **job.model_dump(
            include={"cpu", "samples", "batch", "lr", "momentum", "steps", "pool", "seconds", "epochs"}
        ),
        "seeds": job.seeds,
        "target": target,
        "network": answer.network.network,
    }
    for method in job.methods:
        runs = [run for run in answer.runs if run.method == method]
        found = {
            TARGET: [first.seconds for run in runs if (first := _first(run, lambda t: t.accuracy >= target))],
            AT_TIME: [_at_time(run, job.seconds) for run in runs],
            AT_EPOCHS: [
                first.accuracy
                for run in runs
                if (first := _first(run, lambda t: t.samples >= job.epochs * job.samples))
            ],
            RATE: [run.tests[-1].samples / run.tests[-1].seconds for run in runs],
        }
        counts = [run.counts for run in runs if run.counts]
        for metric, samples in found.items():
            params = {**common, "reached": len(samples), "each": [round(s, 4) for s in samples]}
            if counts:
                params["local_steps"] = counts[-1]
            if samples:
                unit = {TARGET: "s", RATE: "samples/s"}.get(metric, "")
                rows.append(measured(samples, **shared, method=method, metric=metric, unit=unit, params=params))
            else:
                why = f"{metric}: no run of {len(runs)} got so far within {job.cap_s:g} s"
                rows.append(failed(why, **shared, method=method, params=params))
    return rows


def _first(run: Trained, holds: Callable[[Reading], bool]) -> Reading | None:
    return next((test for test in run.tests if holds(test)), None)


def _at_time(run: Trained, seconds: float) -> float:
    return next((t.accuracy for t in reversed(run.tests) if t.seconds <= seconds), run.tests[0].accuracy)


def table_of(rows: Sequence[Row]) -> Table:
    """Lay methods out beside each other."""
    from omnizen.bench.tables import table

    def cell(method: str, metric: str, digits: int) -> str:
        found = next((r for r in rows if r.method == method and r.metric == metric), None)
        if found is None or found.value is None:
            return "not reached"
        short = found.params["reached"] < found.params["seeds"]
        text = f"{found.value:.{digits}f} ({found.p20:.{digits}f} to {found.p80:.{digits}f})"
        return f"{text}, {found.params['reached']} of {found.params['seeds']}" if short else text

    params = next((r.params for r in rows if r.metric != "failed"), {})
    budget = f"after {params.get('seconds', 0):g} s", f"after {params.get('epochs', 0):g} epochs"
    return table(
        f"Hosts of speed {', '.join(f'{c:g}' for c in params.get('cpu', []))}: medians (20th to 80th percentile)",
        {
            "method": "name",
            f"seconds to\naccuracy {params.get('target', 0):g}": "number",
            f"accuracy\n{budget[0]}": "number",
            f"accuracy\n{budget[1]}": "number",
            "samples/s": "number",
        },
        [
            [m, cell(m, TARGET, 2), cell(m, AT_TIME, 3), cell(m, AT_EPOCHS, 3), cell(m, RATE, 0)]
            for m in dict.fromkeys(r.method for r in rows)
        ],
    )


def verdict(rows: Sequence[Row]) -> list[str]:
    """Say what the slow hosts are worth: against leaving them out."""
    values = {(r.method, r.metric): r for r in rows if r.value is not None}
    alone = values.get(("fast-only", TARGET))
    lines = []
    for method in ("local-speed", "local-biased"):
        mine = values.get((method, TARGET))
        if mine is not None and alone is not None and mine.value and alone.value:
            times = alone.value / mine.value
            reached = f"{mine.params['reached']} and {alone.params['reached']} of {mine.params['seeds']} runs"
            spread = max(mine.params["each"]) < min(alone.params["each"])
            word = "in every run" if spread else "within the spread of the runs" if times > 1 else "so no faster"
            lines.append(
                f"{method} reaches the target {times:.2f} times as fast as the fast hosts alone ({reached}; {word})"
            )
    return lines
