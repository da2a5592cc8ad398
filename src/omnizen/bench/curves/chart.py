"""The curves as one HTML page: loss against steps and against bytes, with and without feedback."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median
from typing import Any

from omnizen.bench.curves.settings import DELAYED, DETACHED, OWN_MOMENTUM, WITH, WITHOUT
from omnizen.bench.html_page import write_page
from omnizen.bench.rows import Row

COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#3b5b92",
    "#a05d00", "#1b7a5a",
)  # fmt: skip
MOST_LOSS = 20.0
"""Losses above are not drawn: a run that diverged ends where it left the chart."""


def write_chart(rows: Sequence[Row], path: Path) -> None:
    """Write the page; it needs no network."""
    import plotly.graph_objects as go

    parts = []
    for case in dict.fromkeys(row.case for row in rows):
        of_case = {row.method: row for row in rows if row.case == case}
        for title, names in _groups():
            found = [of_case[name] for name in ["dense", *names] if name in of_case]
            if len(found) < 2:
                continue
            for axis, label in (("steps", "steps"), ("rx_bytes", "bytes received by a rank")):
                figure = go.Figure(
                    [_line(row, axis, place) for place, row in enumerate(found)],
                    {
                        "title": {"text": f"{case}: {title}"},
                        "xaxis": {"title": {"text": label}, "type": "linear" if axis == "steps" else "log"},
                        "yaxis": {"title": {"text": "test loss, median and range of seeds"}, "type": "log"},
                        "height": 460,
                        "template": "plotly_white",
                    },
                )
                parts.append(figure.to_html(full_html=False, include_plotlyjs=False))
        parts.append(_table(list(of_case.values())))
    write_page("Lossy schemes", "Loss against steps and bytes", parts, path)


def _groups() -> list[tuple[str, list[str]]]:
    return [
        ("with error feedback", list(WITH)),
        ("without", list(WITHOUT)),
        ("detached error feedback", list(DETACHED)),
        ("several local steps", list(DELAYED)),
    ]


def _line(row: Row, axis: str, place: int) -> dict[str, Any]:
    by_test = list(zip(*row.params["losses"], strict=False))
    shown = [(x, losses) for x, losses in zip(row.params[axis], by_test, strict=False) if max(losses) < MOST_LOSS]
    if axis == "rx_bytes":
        shown = [(x, losses) for x, losses in shown if x > 0]
    middle = [median(losses) for _, losses in shown]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"{row.method}, lr {row.params['lr']:g}",
        "x": [x for x, _ in shown],
        "y": middle,
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [max(losses) - m for (_, losses), m in zip(shown, middle, strict=True)],
            "arrayminus": [m - min(losses) for (_, losses), m in zip(shown, middle, strict=True)],
            "thickness": 1,
        },
        "line": {"color": "#000000" if row.method == "dense" else COLOURS[place % len(COLOURS)]},
    }


def _table(rows: Sequence[Row]) -> str:
    head = "<tr><th>curve</th><th>step size</th><th>own momentum</th><th>loss</th><th>accuracy</th><th>MB</th></tr>"
    body = "".join(
        f"<tr><td>{escape(row.method)}</td><td>{row.params['lr']:g}</td>"
        f"<td>{'yes' if row.method in (*OWN_MOMENTUM, *DETACHED) else ''}</td>"
        f"<td>{fmean(losses[-1] for losses in row.params['losses']):.3f}</td>"
        f"<td>{row.params['accuracy']:.3f}</td><td>{row.params['rx_bytes'][-1] / 1e6:.2f}</td></tr>"
        for row in sorted(rows, key=lambda row: row.value or 0.0)
    )
    return f"<table>{head}{body}</table>"
