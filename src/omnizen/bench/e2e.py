"""End to end: every method trains the same model on the same batches over the same links, in turn."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from omnizen.bench.job import METHODS, Job
from omnizen.bench.launch import InLab, Launch
from omnizen.bench.limits import check_names
from omnizen.bench.rows import Row, measured
from omnizen.bench.summary import Setting, Trial, e2e_rows, max_relative
from omnizen.bench.trial import Follow, ignore, run_trial
from omnizen.errors import UserError

QUICK = ("ddp-sparse", "omnizen")
WARMUP_STEPS = {"ddp": 1, "ddp-fp16": 1, "torchft": 1}
"""Slow ones take few; PowerSGD begins to compress at step 2 and Omnizen takes as many as its plan needs."""
OTHER_WARMUP_STEPS = 3
SAME_LOSS = 1e-4
"""Relative difference up to which float32 losses count as equal; summation order alone gives about 1e-6."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run.

    Args:
        case: ``lm``, ``flights`` or ``cnn``.
        rate: of each link, before dilation ("100mbit").
        dilation: factor that slows the links with the processors, or ``auto``.
        batch: samples (sequences) a worker and step.
        repeats: times that each method runs, in turn with the others.
        steps: timed steps at most.
        budget_s: timed steps of one run end about here (at least ``min_steps``).
        limit_s: a run that takes longer has failed.
        keep_runs: folder to keep the runs' events, facts and plans in.
    """

    case: str
    hosts: int = 8
    rate: str = "100mbit"
    dilation: float | Literal["auto"] = "auto"
    batch: int = 32
    methods: tuple[str, ...] = METHODS
    repeats: int = 3
    steps: int = 30
    min_steps: int = 3
    warmup_steps: int | None = None
    budget_s: float = 60.0
    limit_s: float = 900.0
    seed: int = 0
    case_options: dict[str, Any] = field(default_factory=dict)
    keep_runs: Path | None = None

    def __post_init__(self) -> None:
        check_names("unknown method", self.methods, METHODS)
        if not self.methods:
            raise UserError(f"no method to run; allowed: {', '.join(METHODS)}")
        if not 2 <= self.hosts <= 64:
            raise UserError(f"between 2 and 64 hosts, got {self.hosts}")
        for name in ("repeats", "steps", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.budget_s < self.limit_s:
            raise UserError(
                f"timed steps may take more than 0 and less than {self.limit_s:g} s, got {self.budget_s:g}"
            )
        if self.seed < 0:
            raise UserError(f"seed must be at least 0, got {self.seed}")


def quick(settings: Settings, *, chosen: bool = False) -> dict[str, Any]:
    """Return the changes that make a run end within a minute; methods that the user chose are kept."""
    few = settings.methods if chosen else tuple(m for m in settings.methods if m in QUICK)
    return {
        "methods": few or settings.methods[:2],
        "repeats": 1,
        "steps": 6,
        "min_steps": 2,
        "budget_s": 6.0,
        "warmup_steps": 1,
    }


def run_e2e(
    settings: Settings,
    *,
    launch: Launch | None = None,
    follow: Callable[[str, int], Follow] = lambda *_: ignore,
    on_trial: Callable[[Trial], None] = lambda *_: None,
    on_rows: Callable[[list[Row]], None] = lambda *_: None,
) -> list[Row]:
    """Run all methods and return their rows; one that fails gives a ``failed`` row and the others go on.

    Args:
        launch: where workers run; the lab by default.
        follow: called with method and repeat, returns who follows that run's messages.
        on_trial: called after each run.
        on_rows: given the rows, also those of the runs that ended before an interrupt.
    """
    from omnizen.bench.cases import make_case
    from omnizen.lab import parse_rate

    case = make_case(settings.case, **settings.case_options)
    rate_mbit = parse_rate(settings.rate) / 1e6
    start: Launch = launch or InLab(settings.hosts, settings.rate, settings.dilation)
    params = {"batch": settings.batch, "seed": settings.seed, **settings.case_options}
    setting = Setting(settings.case, settings.hosts, rate_mbit, case.unit, params)
    trials: list[Trial] = []
    try:
        with folder(settings.keep_runs) as base:
            for repeat in range(settings.repeats):
                for method in settings.methods:
                    trials.append(
                        run_trial(
                            _job(settings, method, base / f"{method}-{repeat}"), start, follow(method, repeat)
                        )
                    )
                    on_trial(trials[-1])
    finally:
        rows = e2e_rows(setting, trials)
        on_rows(rows)
    return rows


def _job(settings: Settings, method: str, place: Path) -> Job:
    return Job(
        case=settings.case, case_options=settings.case_options, method=method, batch=settings.batch,
        warmup_steps=settings.warmup_steps or WARMUP_STEPS.get(method, OTHER_WARMUP_STEPS),
        steps=settings.steps, min_steps=settings.min_steps, budget_s=settings.budget_s,
        limit_s=settings.limit_s, seed=settings.seed, out=place / "answers", run_dir=place,
    )  # fmt: skip


def verify(
    settings: Settings,
    *,
    steps: int = 100,
    launch: Launch | None = None,
    follow: Callable[[str, int], Follow] = lambda *_: ignore,
    on_trial: Callable[[Trial], None] = lambda *_: None,
    on_rows: Callable[[list[Row]], None] = lambda *_: None,
) -> list[Row]:
    """Run each method once for so many steps and compare its losses with one process on the union of the batches.

    Adds a row ``loss_off_single_process``: the largest relative difference over the steps.
    """
    longer = replace(settings, repeats=1, warmup_steps=1, steps=steps - 1, min_steps=steps - 1)
    trials: list[Trial] = []

    def ended(trial: Trial) -> None:
        trials.append(trial)
        on_trial(trial)

    rows = run_e2e(longer, launch=launch, follow=follow, on_trial=ended, on_rows=on_rows)
    compared: list[Row] = []
    expected = single_process_losses(settings, steps)
    for trial in trials:
        if trial.failed:
            continue
        off = max_relative(trial.losses[:steps], expected)
        like = next(r for r in rows if r.method == trial.method and r.metric == "loss")
        params = {**like.params, "steps": steps, "within": SAME_LOSS, "same": off <= SAME_LOSS}
        compared.append(
            measured(
                [off],
                bench="e2e",
                case=like.case,
                method=like.method,
                hosts=like.hosts,
                rate_mbit=like.rate_mbit,
                metric="loss_off_single_process",
                unit="",
                params=params,
            )
        )
    on_rows(compared)
    return rows + compared


def single_process_losses(settings: Settings, steps: int) -> list[float]:
    """Train in this process on the union of all workers' batches; returns the loss of each step."""
    from omnizen.bench.cases import make_case

    case = make_case(settings.case, **settings.case_options)
    model = case.make_model(sparse=True, seed=settings.seed)
    optimizer = case.make_optimizer(model)
    losses = []
    for step in range(steps):
        loss = case.union_loss(model, step, size=settings.hosts, batch=settings.batch, seed=settings.seed)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@contextmanager
def folder(keep: Path | None) -> Iterator[Path]:
    """Give the folder to keep runs in, or one that is removed afterwards."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="omnizen-bench-") as path:
        yield Path(path)
