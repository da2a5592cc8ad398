"""Charts and tables of a benchmark as one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from omnizen.measure.files import write_whole


def write_page(title: str, heading: str, parts: Sequence[str], path: Path) -> None:
    """Write the page.

    Args:
        parts: HTML, figures made without plotly's own script.
    """
    from plotly.offline import get_plotlyjs

    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>body{font:15px system-ui;max-width:1100px;margin:2em auto;padding:0 1em}td,th{padding:2px 10px;"
        "text-align:right}td:first-child{text-align:left}</style>"
        f"<script>{get_plotlyjs()}</script></head><body><h1>{escape(heading)}</h1>{''.join(parts)}"
        "</body></html>\n"
    )
    write_whole(path, page)
