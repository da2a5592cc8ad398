"""All curves of one task, as rows: the best step size by the first seed, then the other seeds with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from omnizen.bench.curves.settings import settings_of
from omnizen.bench.curves.tasks import Task
from omnizen.bench.curves.train import RANKS, Curve, Setting, train
from omnizen.bench.rows import Row, measured

BENCH = "curves"


def run_curves(
    task: Task,
    names: Sequence[str],
    *,
    steps: int,
    tests: int,
    seeds: int,
    on_curve: Callable[[Row], None] = lambda _: None,
) -> Iterator[Row]:
    """Yield one row a curve, as each is done.

    Args:
        steps: optimizer steps of a run.
        tests: how often each run is tested, start and end included.
        seeds: runs of the best step size, with other models and batches.
        on_curve: told of each row.
    """
    for name in names:
        tried = [(s, train(task, s, steps=steps, tests=tests, seed=0)) for s in settings_of(name)]
        best, first = min(tried, key=lambda pair: pair[1].losses[-1] if not pair[1].diverged else float("inf"))
        curves = [first, *(train(task, best, steps=steps, tests=tests, seed=seed) for seed in range(1, seeds))]
        grid = {f"{s.lr:g}": round(c.losses[-1], 4) for s, c in tried}
        row = _row(task, best, curves, grid)
        on_curve(row)
        yield row


def _row(task: Task, setting: Setting, curves: Sequence[Curve], grid: dict[str, float]) -> Row:
    longest = max(curves, key=lambda curve: len(curve.steps))
    params = {
        "plan": str(setting.plan),
        "lr": setting.lr,
        "momentum": setting.momentum,
        "loss_by_lr": grid,
        "steps": longest.steps,
        "rx_bytes": [round(n) for n in longest.rx_bytes],
        "losses": [[round(x, 4) for x in curve.losses] for curve in curves],
        "accuracies": [[round(x, 4) for x in curve.accuracies] for curve in curves],
        "accuracy": round(fmean(curve.accuracies[-1] for curve in curves), 4),
        "diverged": sum(curve.diverged for curve in curves),
    }
    return measured(
        [curve.losses[-1] for curve in curves], bench=BENCH, case=task.name, method=setting.method, hosts=RANKS,
        rate_mbit=None, metric="test_loss", unit="nats", params=params,
    )  # fmt: skip


def bytes_to(row: Row, accuracy: float) -> float | None:
    """Return the bytes after which the mean accuracy of all seeds first reached a level; None if it never did."""
    runs = row.params["accuracies"]
    for place, nbytes in enumerate(row.params["rx_bytes"]):
        if all(len(run) > place for run in runs) and fmean(run[place] for run in runs) >= accuracy:
            return float(nbytes)
    return None


def verdict(rows: Sequence[Row], within: float = 0.01) -> list[str]:
    """Return in words what the curves say: bytes to the dense accuracy less ``within``; detached against plain."""
    lines = []
    for case in dict.fromkeys(row.case for row in rows):
        of_case = {row.method: row for row in rows if row.case == case}
        dense = of_case.get("dense")
        if dense is not None:
            goal = dense.params["accuracy"] - within
            dense_bytes = bytes_to(dense, goal)
            for name, row in of_case.items():
                reached = bytes_to(row, goal)
                if name != "dense" and reached and dense_bytes:
                    less = dense_bytes / reached
                    lines.append(f"{case}: {name} reaches accuracy {goal:.3f} with 1/{less:.0f} of the bytes")
        for name, row in of_case.items():
            if "detached" in name:
                lines.append(f"{case}: {name}: loss {row.value:.3f} at its best step size {row.params['lr']:g}")
    return lines
