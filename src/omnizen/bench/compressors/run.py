"""All schemes on the gradients of one model, as rows: measured parts, predicted steps, break-even bandwidths."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from omnizen.bench.compressors.predict import Computing, break_even_bits_per_s, step_time
from omnizen.bench.rows import Row, failed, measured
from omnizen.errors import OmnizenError, UserError

if TYPE_CHECKING:
    from rich.table import Table

    from omnizen.bench.compressors.measure import UnitParts
    from omnizen.bench.launch import Launch
    from omnizen.measure.subject import Subject

BENCH = "compressors"
RATES = ("10mbit", "30mbit", "100mbit", "300mbit", "1gbit", "3gbit", "10gbit")
WARM_STEPS = 5
"""Optimizer steps before the gradients that are looked at: those of first weights are not typical."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to look at.

    Args:
        case: name in rows.
        hosts: ranks.
        rates_mbit: of each link.
        schemes: catalogue names or texts; dense is always there, as what the others are compared with.
        repeats: timed reductions of each scheme.
    """

    case: str
    hosts: int
    rates_mbit: tuple[float, ...]
    schemes: tuple[str, ...]
    repeats: int = 5

    def __post_init__(self) -> None:
        if not 2 <= self.hosts <= 64:
            raise UserError(f"between 2 and 64 hosts, got {self.hosts}")
        if self.repeats < 1:
            raise UserError(f"repeats must be at least 1, got {self.repeats}")
        if not self.rates_mbit:
            raise UserError("there is no bandwidth to predict for: --rate needs a value")


def all_schemes(sparse: bool) -> list[str]:
    """Return the catalogue's schemes, exact ones first; row schemes only where a gradient is sparse."""
    from omnizen.catalog import REDUCERS

    kinds = {"dense", "row-sparse"} if sparse else {"dense"}
    return sorted((n for n, row in REDUCERS.items() if kinds & set(row.kinds)), key=lambda n: REDUCERS[n].lossy)


def check_schemes(names: Sequence[str]) -> None:
    """Refuse what is no scheme.

    Raises:
        UserError: names the nearest one.
    """
    from omnizen import catalog

    for name in names:
        catalog.reducer(name)


def case_subject(name: str, hosts: int, batch: int, seed: int = 0, **options: Any) -> Subject:
    """Return a case after some steps, with a batch for each rank."""
    from omnizen.bench.cases import make_case
    from omnizen.measure.subject import Subject

    case = make_case(name, **options)
    model = case.make_model(sparse=True, seed=seed)
    optimizer = case.make_optimizer(model)
    for step in range(WARM_STEPS):
        case.union_loss(model, step, size=1, batch=batch, seed=seed).backward()
        optimizer.step()
        optimizer.zero_grad()
    batches = [case.batch_at(WARM_STEPS, rank=r, size=hosts, batch=batch, seed=seed) for r in range(hosts)]
    return Subject(model, {batch: batches}, case.loss)


def run_compressors(
    subject: Subject, settings: Settings, *, on_rows: Callable[[list[Row]], None] = lambda *_: None
) -> list[Row]:
    """Measure every scheme on the subject's gradients and predict its steps.

    Args:
        on_rows: given the rows of each scheme as soon as they are there.
    """
    import torch

    from omnizen.bench.compressors.measure import gradients, measure_scheme, middle

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rows: list[Row] = []
    try:
        found = gradients(subject, settings.hosts)
        computing = Computing(found.forward_s, found.backward_s)
        dense: list[UnitParts] = []
        for scheme in dict.fromkeys(["dense", *settings.schemes]):
            try:
                repeats = measure_scheme(found, scheme, repeats=settings.repeats)
            except OmnizenError as error:
                made = [_failed(str(error), settings, scheme)]
            else:
                units = middle(repeats)
                dense = dense or units
                made = scheme_rows(settings, scheme, computing, repeats, units, dense)
            rows += made
            on_rows(made)
    finally:
        torch.set_num_threads(before)
    return rows


def _failed(reason: str, settings: Settings, scheme: str) -> Row:
    return failed(
        reason, bench=BENCH, case=settings.case, method=scheme, hosts=settings.hosts, rate_mbit=None, params={}
    )


def scheme_rows(
    settings: Settings,
    scheme: str,
    computing: Computing,
    repeats: Sequence[Sequence[UnitParts]],
    units: Sequence[UnitParts],
    dense: Sequence[UnitParts],
) -> list[Row]:
    """Return the rows of one scheme: its parts over repeats, its predicted step at each rate, its break-even."""
    from omnizen.bench.compressors.measure import PARTS

    shared: dict[str, Any] = {
        "bench": BENCH, "case": settings.case, "method": scheme, "hosts": settings.hosts,
    }  # fmt: skip
    rx_bytes = sum(unit.traffic.rx_bytes for unit in units)
    params: dict[str, Any] = {"exact": _exact(scheme), "rx_bytes": rx_bytes, "threads": 1}
    rows = [
        measured(
            [sum(unit.seconds[part] for unit in turn) for turn in repeats],
            **shared, rate_mbit=None, metric=f"{part}_s", unit="s", params=params,
        )
        for part in PARTS
    ]  # fmt: skip
    parts = {f"{part}_s": sum(unit.seconds[part] for unit in units) for part in PARTS}
    parts |= {"forward_s": computing.forward_s, "backward_s": computing.backward_s}
    for rate_mbit in settings.rates_mbit:
        ours = step_time(units, computing, rate_mbit * 1e6, settings.hosts)
        theirs = step_time(dense, computing, rate_mbit * 1e6, settings.hosts)
        more = {"wire_s": ours.wire_s, "exposed_s": ours.exposed_s, "over_dense": theirs.step_s / ours.step_s}
        rows.append(
            measured(
                [ours.step_s],
                **shared, rate_mbit=rate_mbit, metric="predicted_step_s", unit="s", params=params | parts | more,
            )
        )  # fmt: skip
    if scheme != "dense":
        pays_to = break_even_bits_per_s(units, dense, computing, settings.hosts) / 1e6
        row = measured([0.0], **shared, rate_mbit=None, metric="break_even_mbit", unit="Mbit/s", params=params)
        pays = "always" if math.isinf(pays_to) else "never" if pays_to == 0 else "below"
        value = pays_to if pays == "below" else None
        rows.append(replace(row, value=value, p20=value, p80=value, params=params | {"faster": pays}))
    return rows


def _exact(scheme: str) -> bool:
    from omnizen import catalog

    return catalog.reducer(scheme).exact


def verify(
    settings: Settings,
    rows: Sequence[Row],
    schemes: Sequence[str],
    rate_mbit: float,
    *,
    batch: int,
    steps: int = 8,
    launch: Launch | None = None,
) -> list[Row]:
    """Train the case by some of the schemes in the lab; returns measured steps beside the predictions.

    Args:
        rows: with the predictions at this rate.
        steps: timed ones.
        launch: where workers run; the lab by default, dilated so that compute and wire keep their proportion.
    """
    from omnizen.bench.job import Job
    from omnizen.bench.launch import InLab
    from omnizen.bench.trial import run_trial

    start = launch or InLab(settings.hosts, f"{rate_mbit:g}mbit", "auto")
    predicted = {r.method: r.value for r in rows if r.metric == "predicted_step_s" and r.rate_mbit == rate_mbit}
    out = []
    for scheme in schemes:
        shared: dict[str, Any] = {
            "bench": BENCH, "case": settings.case, "method": scheme, "hosts": settings.hosts,
            "rate_mbit": rate_mbit,
        }  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="omnizen-bench-") as place:
            trial = run_trial(
                Job(
                    case=settings.case, method="omnizen", plan=scheme, batch=batch, steps=steps, budget_s=30.0,
                    out=Path(place) / "answers", run_dir=Path(place),
                ),
                start,
            )  # fmt: skip
        if trial.failed:
            out.append(failed(trial.failed, **shared, params={}))
            continue
        dilation = trial.answers[0].network.dilation
        samples = [step_s / dilation for step_s in trial.step_s]
        expected = predicted.get(scheme)
        off = expected / median(samples) - 1 if expected else None
        more = {"predicted_step_s": expected, "predicted_off_by": off, "dilation": dilation}
        out.append(measured(samples, **shared, metric="step_s", unit="s", params=more))
    return out


def table(rows: Sequence[Row]) -> Table:
    """Lay out parts, speed-ups over dense by bandwidth, and where each scheme stops to pay."""
    from omnizen.bench.compressors.measure import PARTS
    from omnizen.bench.tables import table as lay_out

    rates = sorted({r.rate_mbit for r in rows if r.metric == "predicted_step_s" and r.rate_mbit is not None})
    cells = []
    for method in dict.fromkeys(row.method for row in rows):
        own = {(r.metric, r.rate_mbit): r for r in rows if r.method == method}
        if ("select_s", None) not in own:
            cells.append([method, "failed"] + [""] * (len(PARTS) + len(rates) + 1))
            continue
        first = own["select_s", None]
        parts = [f"{1e3 * (own[f'{part}_s', None].value or 0.0):.1f}" for part in PARTS]
        gains = [f"{own['predicted_step_s', rate].params['over_dense']:.2f}" for rate in rates]
        lossy = "" if first.params["exact"] else "yes"
        even = own.get(("break_even_mbit", None))
        cells.append([method, lossy, f"{first.params['rx_bytes'] / 1e6:.2f}", *parts, *gains, _pays(even)])
    columns = {"scheme": "name", "lossy": "name", "MB received": "number"}
    columns |= {f"{part}\nms": "number" for part in PARTS}
    columns |= {f"x dense,\n{rate:g} Mbit/s": "number" for rate in rates}
    backward_s = next((r.params["backward_s"] for r in rows if r.metric == "predicted_step_s"), 0.0)
    return lay_out(
        f"one core's parts of a reduction, and predicted speed beside dense (backward: {1e3 * backward_s:.1f} ms)",
        columns | {"pays below\nMbit/s": "number"},  # type: ignore[arg-type]
        cells,
        caption="\n".join(dict.fromkeys(str(r.params["reason"]) for r in rows if r.metric == "failed")),
    )


def _pays(row: Row | None) -> str:
    if row is None:
        return ""
    return str(row.params["faster"]) if row.value is None else f"{row.value:,.0f}"
