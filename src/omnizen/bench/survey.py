"""The survey's comparison grid: synchronisation, architecture, compression, scheduling, every way with every.

Each cell trains a small model on real data by four ranks (loss and bytes are those of real messages); its step time
is predicted, from processor parts measured on the task's gradients, for links of any rate.

Reference: Tang et al., "Communication-Efficient Distributed Deep Learning: A Comprehensive Survey",
arXiv:2003.06307.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from omnizen.bench.limits import check_counts
from omnizen.bench.rows import Row, measured
from omnizen.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from omnizen.bench.compressors.measure import UnitParts
    from omnizen.bench.compressors.predict import Computing
    from omnizen.bench.curves.tasks import Task
    from omnizen.bench.curves.train import Curve

BENCH = "survey"
SYNCHRONISATION = {"bulk": 1, "local": 8}
"""Steps between two exchanges. Bounded staleness and asynchronous steps have no deterministic curve and no cell."""
SCHEMES = {
    ("all-reduce", "none"): "dense",
    ("all-reduce", "quantisation"): "shared-scale",
    ("all-reduce", "sparsification"): "randomk",
    ("all-reduce", "low rank"): "powersgd",
    ("all-gather", "none"): "gathered(exponent-pack)",
    ("all-gather", "quantisation"): "qsgd",
    ("all-gather", "sparsification"): "topk",
    ("owners", "none"): "dense-packed",
    ("owners", "quantisation"): "feedback(two-way(qsgd))",
    ("owners", "sparsification"): "stc",
}
"""Architecture and compression to scheme. "owners" is a parameter server of which every rank holds a part; low rank
has no form in which payloads do not add up, and gossip is not built."""
SCHEDULING = ("after backward", "by tensor", "in buckets")
"""Nothing overlaps; each tensor leaves as it is ready; so do buckets of tensors (tensor fusion)."""
STEP_SIZES = (0.02, 0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much to do.

    Args:
        steps: of a run.
        seeds: runs of each cell's best step size.
        lrs: step sizes that each cell tries.
        rates_mbit: of the links for which steps are predicted.
        repeats: timed reductions of each scheme.
    """

    steps: int = 120
    seeds: int = 3
    lrs: tuple[float, ...] = STEP_SIZES
    rates_mbit: tuple[float, ...] = (10.0, 100.0, 1000.0)
    repeats: int = 3

    def __post_init__(self) -> None:
        check_counts(steps=self.steps, seeds=self.seeds, repeats=self.repeats)
        if not self.rates_mbit:
            raise UserError("there is no bandwidth to predict for: --rate needs a value")


def quick(settings: Settings) -> Settings:
    """Return what ends within a minute: few steps, one seed, one step size."""
    return replace(settings, steps=min(settings.steps, 16), seeds=1, lrs=settings.lrs[:1], repeats=1)


def run_survey(
    task: Task,
    settings: Settings,
    *,
    on_cell: Callable[[str], None] = lambda _: None,
    on_rows: Callable[[list[Row]], None] = lambda _: None,
) -> list[Row]:
    """Train and predict every cell of one task.

    Args:
        on_cell: told of each pair of architecture and compression before it begins.
        on_rows: given the rows of each cell as soon as they are there.
    """
    from omnizen.bench.compressors.measure import gradients, measure_scheme, middle
    from omnizen.bench.compressors.predict import Computing

    found = gradients(_subject(task), _ranks())
    computing = Computing(found.forward_s, found.backward_s)
    rows: list[Row] = []
    for (architecture, compression), scheme in SCHEMES.items():
        on_cell(f"{task.name}: {architecture}, {compression} ({scheme})")
        buckets = middle(measure_scheme(found, scheme, repeats=settings.repeats))
        tensors = middle(measure_scheme(found, scheme, repeats=settings.repeats, bucket_bytes=1))
        for synchronisation, every in SYNCHRONISATION.items():
            axes = {
                "synchronisation": synchronisation, "architecture": architecture, "compression": compression,
                "scheme": scheme, "local_steps": every,
            }  # fmt: skip
            made = [
                *_trained(task, settings, axes),
                *_predicted(task, settings, axes, computing, {"by tensor": tensors, "in buckets": buckets}),
            ]
            on_rows(made)
            rows += made
    return rows


def _ranks() -> int:
    from omnizen.bench.curves.train import RANKS

    return RANKS


def _subject(task: Task) -> Any:
    from torch.nn.functional import cross_entropy

    from omnizen.measure.subject import Subject

    batches = [task.batch_at(0, rank, 0) for rank in range(_ranks())]
    return Subject(task.model(0), {task.batch: batches}, lambda model, b: cross_entropy(model(b[0]), b[1]))


def _trained(task: Task, settings: Settings, axes: dict[str, Any]) -> Iterator[Row]:
    """Yield the loss at the best step size, and the bytes of a step."""
    from omnizen import strategies
    from omnizen.bench.curves.train import Setting, train

    scheme, every = str(axes["scheme"]), int(axes["local_steps"])
    plan = scheme if every == 1 else strategies.local_sgd(every, share="delta", reducer=scheme)

    def run(lr: float, seed: int) -> Curve:
        setting = Setting(method=_name(axes), plan=plan, lr=lr)
        return train(task, setting, steps=settings.steps, tests=2, seed=seed)

    tried = {lr: run(lr, 0) for lr in settings.lrs}
    best = min(tried, key=lambda lr: tried[lr].losses[-1])
    curves = [tried[best], *(run(best, seed) for seed in range(1, settings.seeds))]
    params = {
        **axes, "lr": best, "steps": settings.steps, "diverged": sum(c.diverged for c in curves),
        "accuracy": round(fmean(c.accuracies[-1] for c in curves), 4),
        "first_loss": round(median(c.losses[0] for c in curves), 4),
    }  # fmt: skip
    shared: dict[str, Any] = {
        "bench": BENCH, "case": task.name, "method": _name(axes), "hosts": _ranks(), "rate_mbit": None,
        "params": params,
    }  # fmt: skip
    yield measured([c.losses[-1] for c in curves], **shared, metric="test_loss", unit="nats")
    per_step = [c.rx_bytes[-1] / settings.steps for c in curves]
    yield measured(per_step, **shared, metric="rx_bytes_per_step", unit="B")


def _predicted(
    task: Task, settings: Settings, axes: dict[str, Any], computing: Computing, units: dict[str, list[UnitParts]]
) -> Iterator[Row]:
    """Yield the predicted step of each way to schedule at each rate."""
    from omnizen.bench.compressors.predict import step_time

    compute_s = computing.forward_s + computing.backward_s
    for rate_mbit in settings.rates_mbit:
        for scheduling in SCHEDULING:
            parts = units["by tensor" if scheduling == "by tensor" else "in buckets"]
            time = step_time(parts, computing, rate_mbit * 1e6, _ranks())
            alone_s = time.wire_s + sum(unit.cpu_s for unit in parts)
            every = int(axes["local_steps"])
            # Between two exchanges of local steps nothing travels, and an exchange has no backward to hide behind.
            waited_s = alone_s / every if every > 1 or scheduling == "after backward" else time.exposed_s
            yield measured(
                [compute_s + waited_s], bench=BENCH, case=task.name, method=f"{_name(axes)}, {scheduling}",
                hosts=_ranks(), rate_mbit=rate_mbit, metric="predicted_step_s", unit="s",
                params={**axes, "scheduling": scheduling, "wire_s": time.wire_s, "compute_s": compute_s},
            )  # fmt: skip


def _name(axes: dict[str, Any]) -> str:
    return f"{axes['synchronisation']}, {axes['architecture']}, {axes['compression']}"


def table(rows: Sequence[Row]) -> Table:
    """Lay out the grid: loss, bytes, and the best schedule's predicted step at each rate."""
    from omnizen.bench.tables import table as lay_out

    rates = sorted({r.rate_mbit for r in rows if r.rate_mbit is not None})
    cells = []
    for case, method in dict.fromkeys((r.case, r.method) for r in rows if r.metric == "test_loss"):
        own = {r.metric: r for r in rows if (r.case, r.method) == (case, method)}
        steps = [r for r in rows if r.case == case and r.method.startswith(f"{method}, ")]
        best = [min((r for r in steps if r.rate_mbit == rate), key=lambda r: r.value or 0.0) for rate in rates]
        loss, nbytes = own["test_loss"], own["rx_bytes_per_step"]
        axes = [str(loss.params[axis]) for axis in ("synchronisation", "architecture", "compression", "scheme")]
        shown = "diverged" if loss.params["diverged"] else f"{loss.value:.3f}"
        times = [f"{1e3 * (r.value or 0.0):.1f} ({r.params['scheduling']})" for r in best]
        cells.append([case, *axes, shown, f"{(nbytes.value or 0.0) / 1e3:.1f}", *times])
    columns = {
        "case": "name", "synchronisation": "name", "architecture": "name", "compression": "name", "scheme": "name",
        "test loss": "number", "kB a step": "number",
    } | {f"ms a step,\n{rate:g} Mbit/s": "number" for rate in rates}  # fmt: skip
    return lay_out(
        "four axes: loss and bytes as trained, steps as predicted with the best scheduling",
        columns,  # type: ignore[arg-type]
        cells,
    )
