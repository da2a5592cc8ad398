"""Charts as plain plotly figures. Colours are names such as ``@wire``; the page puts those of its theme in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from omnizen.report import numbers
from omnizen.report.analysis import PARTS, all_lengths, losses, summarise
from omnizen.report.load import RunData

Figure = dict[str, Any]

MATRIX_UP_TO = 12
"""Worlds up to this size are drawn as a matrix; larger ones are listed."""
MOST_POINTS = 1000
RUN_COLORS = ("@run0", "@run1", "@run2", "@run3", "@run4", "@run5")
RUN_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def _figure(data: list[Figure], *, height: int, **layout: Any) -> Figure:
    return {"data": data, "layout": {"height": height} | layout}


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return about ``MOST_POINTS`` points: of each group of neighbours the lowest, the highest and one not finite.

    So a step that was long, or a loss that is not a number, is seen however long the run was.
    """
    if len(points) <= MOST_POINTS:
        return list(points)
    width = -(-2 * len(points) // MOST_POINTS)
    kept = []
    for at in range(0, len(points), width):
        group = points[at : at + width]
        finite = [point for point in group if math.isfinite(point[1])]
        extremes = {min(finite, key=_height), max(finite, key=_height)} if finite else set()
        broken = next((point for point in group if not math.isfinite(point[1])), None)
        kept += sorted([*extremes, *([broken] if broken else [])], key=lambda point: point[0])
    return kept


def _height(point: tuple[float, float]) -> float:
    return point[1]


def breakdown(run: RunData) -> Figure | None:
    """Stacked bars: where each worker's step goes."""
    summary = summarise(run)
    if summary is None or not summary.parts:
        return None
    ranks = sorted(summary.parts)
    scale, unit = numbers.axis_unit(summary.step_s)
    labels = [f"rank {rank}" for rank in ranks]
    bars: list[Figure] = []
    for part in PARTS:
        values = [summary.parts[rank][part] for rank in ranks]
        if any(value > 0.001 * summary.step_s for value in values):
            bars.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": part,
                    "y": labels,
                    "x": [value * scale for value in values],
                    "marker": {"color": f"@{part}"},
                    "hovertext": [
                        f"rank {r}, {part}: {numbers.seconds(v)}" for r, v in zip(ranks, values, strict=True)
                    ],
                    "hoverinfo": "text",
                }
            )
    return _figure(
        bars,
        height=150 + 34 * len(ranks),
        barmode="stack",
        bargap=0.35,
        xaxis={"title": {"text": f"{unit} of one step"}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "showgrid": False},
        legend={"traceorder": "normal"},
    )


def step_times(runs: Sequence[RunData]) -> Figure | None:
    """Seconds of each step of each run, with the plan's prediction as a thin line."""
    by_run = [all_lengths(run) for run in runs]
    if not any(by_run):
        return None
    top_s = shown_up_to(by_run)
    scale, unit = numbers.axis_unit(top_s)
    lines: list[Figure] = []
    for i, (run, lengths) in enumerate(zip(runs, by_run, strict=True)):
        if not lengths:
            continue
        lines.append(line(i, run.label, [(step, took * scale) for step, took in thin(list(lengths.items()))]))
        if run.plan is not None:
            start = max((plan.step for log in run.ranks.values() for plan in log.plans), default=min(lengths))
            predicted = run.plan.prediction.step_s * scale
            expected = line(i, f"{run.label}, predicted", [(start, predicted), (max(lengths), predicted)])
            lines.append(expected | {"line": {"color": "@predicted", "width": 2, "dash": "dot"}})
    return _figure(
        lines,
        height=320,
        xaxis={"title": {"text": "step"}},
        yaxis={"title": {"text": unit}, "range": [0, 1.08 * top_s * scale]},
    )


def shown_up_to(by_run: Sequence[dict[int, float]]) -> float:
    """Return the longest step that the chart of step times shows; a few extreme ones must not flatten the rest."""
    every = [sorted(lengths.values()) for lengths in by_run if lengths]
    usual_s = max(lengths[int(0.95 * (len(lengths) - 1))] for lengths in every)
    longest_s = max(lengths[-1] for lengths in every)
    return longest_s if longest_s <= 3 * usual_s else 1.5 * usual_s


def loss_by_step(runs: Sequence[RunData]) -> Figure | None:
    """Loss against steps."""
    return _losses([[(step, loss) for step, _, loss in losses(run)] for run in runs], runs, "step")


def loss_by_second(runs: Sequence[RunData]) -> Figure | None:
    """Loss against seconds since the start, measuring and planning included."""
    return _losses([[(at, loss) for _, at, loss in losses(run)] for run in runs], runs, "seconds since the start")


def _losses(curves: list[list[tuple[float, float]]], runs: Sequence[RunData], axis: str) -> Figure | None:
    named = [(run.label, thin(curve)) for run, curve in zip(runs, curves, strict=True)]
    return by_place(named, axis, "loss")


def by_place(curves: Sequence[tuple[str, Sequence[tuple[float, float]]]], x: str, y: str) -> Figure | None:
    """Lines of named curves, each in the colour of its place; None where no curve has a point."""
    lines = [line(i, name, curve) for i, (name, curve) in enumerate(curves) if curve]
    if not lines:
        return None
    return _figure(lines, height=320, xaxis={"title": {"text": x}}, yaxis={"title": {"text": y}})


def line(i: int, name: str, points: Sequence[tuple[float, float]]) -> Figure:
    """One line of a chart, in the colour and dashes of its number; a point where there is only one."""
    style = {"color": RUN_COLORS[i % len(RUN_COLORS)], "width": 2, "dash": RUN_DASHES[i % len(RUN_DASHES)]}
    return {
        "type": "scatter",
        "mode": "lines" if len(points) > 1 else "markers",
        "name": escape(name),
        "x": [x for x, _ in points],
        "y": [y if math.isfinite(y) else None for _, y in points],
        "line": style,
    }


def matrix(cells: dict[tuple[int, int], float], size: int, write: Callable[[float], str]) -> Figure | None:
    """Heat map from source (rows) to destination (columns); ``write`` turns a value into text."""
    if size > MATRIX_UP_TO or not cells:
        return None
    ranks = range(size)
    labels = [str(rank) for rank in ranks]
    values = [[cells.get((source, dest)) for dest in ranks] for source in ranks]
    texts = [["" if v is None else write(v).replace(" ", "<br>") for v in row] for row in values]
    low, high = min(cells.values()), max(cells.values())
    return _figure(
        [
            {
                "type": "heatmap",
                "x": labels,
                "y": labels,
                "z": values,
                "text": texts,
                "textfont": {"color": "@ink"},
                "texttemplate": "%{text}" if size <= 8 else "",
                "hovertemplate": "%{y} → %{x}: %{text}<extra></extra>",
                "zmin": low * 0.9 if high - low < 0.3 * high else 0,
                "zmax": high,
                "colorscale": [[0, "@heat0"], [1, "@heat1"]],
                "showscale": False,
                "xgap": 3,
                "ygap": 3,
                "hoverongaps": False,
            }
        ],
        height=130 + 52 * min(size, 8),
        xaxis={"title": {"text": "to rank"}, "type": "category", "ticks": "", "showgrid": False},
        yaxis={
            "title": {"text": "from rank"},
            "type": "category",
            "autorange": "reversed",
            "ticks": "",
            "showgrid": False,
        },
    )


def alternatives(names: Sequence[str], predicted_s: Sequence[float]) -> Figure:
    """Bars of predicted seconds by scheme, the chosen one first."""
    scale, unit = numbers.axis_unit(max(predicted_s))
    colors = ["@chosen", *["@rejected"] * (len(names) - 1)]
    return _figure(
        [
            {
                "type": "bar",
                "orientation": "h",
                "y": [escape(name) for name in names],
                "x": [s * scale for s in predicted_s],
                "marker": {"color": colors},
                "text": [numbers.seconds(s) for s in predicted_s],
                "textposition": "outside",
                "cliponaxis": False,
                "hoverinfo": "skip",
            }
        ],
        height=110 + 32 * len(names),
        showlegend=False,
        bargap=0.35,
        xaxis={
            "title": {"text": f"predicted {unit}"},
            "rangemode": "tozero",
            "range": [0, max(predicted_s) * scale * 1.3],
        },
        yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
    )
