"""The section on every scheme that could have been taken: predicted and measured steps on this model and links."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from omnizen.plan.candidates import Candidate
from omnizen.plan.candidates import candidates as weighed
from omnizen.report import numbers
from omnizen.report.analysis import summarise
from omnizen.report.charts import Figure
from omnizen.report.load import RunData
from omnizen.report.markup import Cell, Html, chart, empty, paragraph, section, table

MOST = 40
PLANNED = "as planned"
ROOM = 1.5
"""Length of the axis over that of the longest bar: numbers stand beside the bars, also on a phone."""


def candidates(runs: Sequence[RunData]) -> Html:
    """The candidates of each run that has a plan and the facts behind it."""
    parts: list[Html] = []
    for i, run in enumerate(runs):
        parts += _of_run(f"candidates-{i}", run)
    return section("candidates", "What each compressor would take", *parts)


def _of_run(name: str, run: RunData) -> list[Html]:
    if run.plan is None or run.facts is None:
        return [empty(f"{run.label} has no plan with the facts behind it, so there is nothing to weigh.")]
    found = weighed(run.facts, run.plan)[:MOST]
    if not found:
        return [empty(f"The facts of {run.label} do not say what its links or gradients are.")]
    summary = summarise(run)
    measured_s = summary.step_s if summary else None
    planned = Candidate(PLANNED, False, run.plan.prediction.step_s, run.plan.prediction.rx_bytes_per_step)
    rows = [_row(planned, planned.step_s, measured_s)]
    rows += [_row(c, planned.step_s, c.tried_step_s) for c in found]
    head: list[Cell] = ["scheme", "loses something", "predicted step", "speed", "busiest receives", "measured step"]
    fastest = found[0]
    text = (
        f"The plan of {run.label} is predicted to take {numbers.seconds(planned.step_s)} a step; of single schemes "
        f"{fastest.scheme} comes first with {numbers.seconds(fastest.step_s)}, {found[-1].scheme} last with "
        f"{numbers.seconds(found[-1].step_s)}."
    )
    legend = (
        "Each row gives one scheme to all gradients to which it applies, lossy ones to those of 1,000 elements or "
        "more; the others stay as planned. Speed: the plan's step over this one. Measured: the run's median for "
        "the plan, what a trial saw for schemes that were tried."
    )
    if not any(c.lossy for c in found):
        legend += " Lossy schemes are not listed: the price of selecting and quantising was not measured."
    figure = _figure([planned, *found], measured_s)
    return [
        chart(name, f"Predicted and measured step of {run.label} by scheme", figure, text, ""),
        table(f"Candidates of {run.label}, the fastest first", head, rows, numeric_from=2),
        paragraph(legend, "small"),
    ]


def _row(candidate: Candidate, planned_s: float, measured_s: float | None) -> list[Cell]:
    return [
        candidate.scheme,
        "yes" if candidate.lossy else "no",
        numbers.seconds(candidate.step_s),
        f"{numbers.significant(planned_s / candidate.step_s)} {numbers.TIMES}" if candidate.step_s else "",
        numbers.nbytes(candidate.rx_bytes),
        numbers.seconds(measured_s) if measured_s is not None else numbers.MISSING,
    ]


def _figure(found: Sequence[Candidate], measured_s: float | None) -> Figure:
    scale, unit = numbers.axis_unit(max(c.step_s for c in found))
    names = [escape(c.scheme) for c in found]
    seen = [c.tried_step_s if c.scheme != PLANNED else measured_s for c in found]
    longest_s = max([c.step_s for c in found] + [s for s in seen if s is not None])
    colors = ["@chosen" if c.scheme == PLANNED else "@run1" if c.lossy else "@rejected" for c in found]
    bars: Figure = {
        "type": "bar", "orientation": "h", "name": "predicted", "y": names, "x": [c.step_s * scale for c in found],
        "marker": {"color": colors}, "text": [numbers.seconds(c.step_s) for c in found],
        "textposition": "outside", "cliponaxis": False, "hoverinfo": "skip",
    }  # fmt: skip
    marks: Figure = {
        "type": "scatter", "mode": "markers", "name": "measured",
        "y": [name for name, s in zip(names, seen, strict=True) if s is not None],
        "x": [s * scale for s in seen if s is not None],
        "marker": {"color": "@ink", "symbol": "diamond", "size": 9},
    }  # fmt: skip
    return {
        "data": [bars, marks],
        "layout": {
            "height": 120 + 26 * len(found), "showlegend": False, "bargap": 0.3,
            "xaxis": {"title": {"text": f"{unit} of one step"}, "range": [0, longest_s * scale * ROOM]},
            "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
        },
    }  # fmt: skip
