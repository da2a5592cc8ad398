"""When does compression pay, as one HTML page: speed-up against bandwidth, break-even, and where time goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omnizen.bench.compressors.measure import PARTS
from omnizen.bench.curves.chart import COLOURS
from omnizen.bench.html_page import write_page
from omnizen.bench.rows import Row

STACK = ("backward", *PARTS, "wire")
PART_COLOURS = ("#9aa5b1", "#2ca02c", "#1f77b4", "#9467bd", "#bcbd22", "#d62728")
REFERENCE_MBIT = 100.0
"""Bandwidth of the breakdown, or the nearest one there is."""


def write_chart(rows: Sequence[Row], path: Path) -> None:
    """Draw all cases of the rows."""
    parts = []
    for case, hosts in dict.fromkeys((row.case, row.hosts) for row in rows):
        of_case = [row for row in rows if (row.case, row.hosts) == (case, hosts)]
        where = f"{case}, {hosts} workers"
        steps = [row for row in of_case if row.metric == "predicted_step_s"]
        for exact, kind in ((True, "exact schemes"), (False, "lossy schemes")):
            chosen = [row for row in steps if row.params["exact"] == exact and row.method != "dense"]
            if chosen:
                seen = [row for row in of_case if row.metric == "step_s"]
                parts.append(_html(*_speed_up(f"{where}: {kind}", chosen, [*steps, *seen])))
        parts += [_html(*_break_even(where, of_case)), _html(*_breakdown(where, steps))]
    write_page("Compressors", "When does compression pay?", parts, path)


def _html(data: list[dict[str, Any]], layout: dict[str, Any]) -> str:
    import plotly.graph_objects as go

    figure = go.Figure(data, {"template": "plotly_white"} | layout)
    return str(figure.to_html(full_html=False, include_plotlyjs=False))


def _speed_up(
    title: str, chosen: Sequence[Row], every: Sequence[Row]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    methods = list(dict.fromkeys(row.method for row in chosen))
    dense = {
        row.rate_mbit: row.value for row in every if row.method == "dense" and row.metric == "predicted_step_s"
    }
    data: list[dict[str, Any]] = []
    for place, method in enumerate(methods):
        own = [row for row in chosen if row.method == method]
        colour = COLOURS[place % len(COLOURS)]
        dash = ("solid", "dash", "dot")[place // len(COLOURS) % 3]
        data.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": method, "line": {"color": colour, "dash": dash},
                "x": [row.rate_mbit for row in own], "y": [row.params["over_dense"] for row in own],
            }
        )  # fmt: skip
        seen = [row for row in every if row.method == method and row.metric == "step_s" and row.value]
        if seen:
            gains = [(dense.get(row.rate_mbit) or 0.0) / (row.value or 1.0) for row in seen]
            data.append(
                {
                    "type": "scatter", "mode": "markers", "name": f"{method}, measured",
                    "marker": {"color": colour, "symbol": "x", "size": 11},
                    "x": [row.rate_mbit for row in seen], "y": gains,
                }
            )  # fmt: skip
    layout = {
        "title": {"text": title}, "height": 520,
        "xaxis": {"title": {"text": "rate of each link, Mbit/s"}, "type": "log"},
        "yaxis": {"title": {"text": "times as fast a step as dense"}, "type": "log"},
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {"width": 1}}],
    }  # fmt: skip
    return data, layout


def _break_even(where: str, rows: Sequence[Row]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    top = max((row.value for row in rows if row.metric == "break_even_mbit" and row.value), default=1.0)
    found = [row for row in rows if row.metric == "break_even_mbit" and row.params["faster"] != "never"]
    found.sort(key=lambda row: row.value or 10 * top)
    bars = {
        "type": "bar", "orientation": "h",
        "y": [row.method for row in found], "x": [row.value or 10 * top for row in found],
        "text": [f"{row.value:,.0f} Mbit/s" if row.value else "at any rate" for row in found],
    }  # fmt: skip
    layout = {
        "title": {"text": f"{where}: faster than dense up to"}, "height": 160 + 22 * len(found),
        "xaxis": {"title": {"text": "rate of each link, Mbit/s"}, "type": "log"}, "yaxis": {"automargin": True},
    }  # fmt: skip
    return [bars], layout


def _breakdown(where: str, steps: Sequence[Row]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rates = sorted({row.rate_mbit for row in steps if row.rate_mbit}, key=lambda r: abs(r - REFERENCE_MBIT))
    shown = [row for row in steps if row.rate_mbit == rates[0]]
    data = [
        {
            "type": "bar", "orientation": "h", "name": part, "marker": {"color": colour},
            "y": [row.method for row in shown], "x": [1e3 * row.params[f"{part}_s"] for row in shown],
        }
        for part, colour in zip(STACK, PART_COLOURS, strict=True)
    ]  # fmt: skip
    layout = {
        "title": {"text": f"{where}: parts of a step at {rates[0]:g} Mbit/s, nothing overlapping"},
        "barmode": "stack", "height": 200 + 22 * len(shown),
        "xaxis": {"title": {"text": "ms"}}, "yaxis": {"autorange": "reversed", "automargin": True},
    }  # fmt: skip
    return data, layout
