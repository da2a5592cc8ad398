"""Small pieces of HTML. Whatever comes from a run (names of hosts, parameters, notes) is escaped here."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


@dataclass(frozen=True, slots=True)
class Html:
    """Text that is HTML already; everything else is escaped when it is put into a page."""

    text: str


Cell = str | Html


_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|µs|min|[kMGT]?B|[kMG]?bit/s|million)\b|[%\u00d7])")


def html(cell: Cell) -> str:
    """Return HTML of a cell; no line ends between a number and its unit."""
    return cell.text if isinstance(cell, Html) else _BEFORE_UNIT.sub("&nbsp;", escape(cell))


def wrapping(text: str) -> Html:
    """Return words that may wrap in a column of numbers."""
    return Html(f'<span class="words">{html(text)}</span>')


def code(name: str) -> Html:
    """Return a name in the type of code, which may break anywhere, preferably after dots and underscores."""
    return Html(f"<code>{escape(name).replace('.', '.<wbr>').replace('_', '_<wbr>')}</code>")


def long(text: str) -> Html:
    """Return a sentence for a column that should not get narrow."""
    return Html(f'<span class="long">{html(text)}</span>')


def paragraph(text: Cell, kind: str = "") -> Html:
    """Return a paragraph."""
    return Html(f'<p class="{escape(kind)}">{html(text)}</p>' if kind else f"<p>{html(text)}</p>")


def empty(reason: str) -> Html:
    """Return what stands in a section that has nothing to show: the reason."""
    return paragraph(reason, "empty")


def table(caption: str, head: Sequence[Cell], rows: Sequence[Sequence[Cell]], *, numeric_from: int = 1) -> Html:
    """Return a table in a box of its own that scrolls sideways; columns from ``numeric_from`` on are set right."""

    def classes(column: int) -> str:
        return ' class="number"' if column >= numeric_from else ""

    top = "".join(f'<th scope="col"{classes(i)}>{html(cell)}</th>' for i, cell in enumerate(head))
    body = []
    for row in rows:
        first = f'<th scope="row"{classes(0)}>{html(row[0])}</th>'
        rest = "".join(f"<td{classes(i)}>{html(cell)}</td>" for i, cell in enumerate(row) if i > 0)
        body.append(f"<tr>{first}{rest}</tr>")
    return Html(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def chart(
    name: str, title: Cell, figure: dict[str, Any] | None, summary: str, otherwise: str, kind: str = ""
) -> Html:
    """Return a chart with its summary in words; without a figure the reason ``otherwise``."""
    if figure is None:
        return Html(f"<h3>{html(title)}</h3>{empty(otherwise).text}")
    height = figure["layout"]["height"]
    data = json.dumps(figure, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Html(
        f'<figure><h3 id="{escape(name)}-title">{html(title)}</h3>'
        f'<div class="chart {escape(kind)}" id="{escape(name)}" role="img" aria-labelledby="{escape(name)}-title" '
        f'aria-describedby="{escape(name)}-text" style="height:{height}px"></div>'
        f'<script type="application/json" data-chart="{escape(name)}">{data}</script>'
        f'<figcaption id="{escape(name)}-text">{html(summary)}</figcaption></figure>'
    )


def details(summary: Cell, inside: Html) -> Html:
    """Return a part that opens on request."""
    return Html(f"<details><summary>{html(summary)}</summary>{inside.text}</details>")


def section(name: str, title: str, *parts: Html) -> Html:
    """Return a section of the page."""
    inside = "".join(part.text for part in parts)
    return Html(f'<section id="{escape(name)}"><h2>{escape(title)}</h2>{inside}</section>')
