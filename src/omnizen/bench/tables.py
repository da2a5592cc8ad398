"""Tables for the terminal, in which names and numbers are never cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Kind = Literal["name", "number", "text"]
"""What a column holds: names and numbers stay whole on one line, texts fold."""


def table(title: str, columns: Mapping[str, Kind], rows: Iterable[Sequence[str]], caption: str = "") -> Table:
    """Lay rows out in columns.

    Args:
        columns: kinds by heading; a heading of names or numbers is broken where it says (``\\n``) and nowhere else.

    Example:
        >>> table("speeds", {"scheme": "name", "ms": "number"}, [("zen-coo", "5.0")]).row_count
        1
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    cells = [list(row) for row in rows]
    out = Table(
        title=title,
        caption=caption or None,
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
    )
    out.title_justify = out.caption_justify = "left"
    for place, (heading, kind) in enumerate(columns.items()):
        lines = [line for cell in (heading, *(row[place] for row in cells)) for line in cell.split("\n")]
        whole = kind != "text"
        out.add_column(
            heading,
            justify="right" if kind == "number" else "left",
            overflow="fold",
            no_wrap=whole,
            min_width=max(map(len, lines)) if whole else None,
        )
    for row in cells:
        out.add_row(*row)
    return out


def show(console: Console, *tables: Table) -> None:
    """Print tables, wider than the terminal where names and numbers do not fit into it."""
    from rich.measure import Measurement

    options = console.options.update(width=10_000)
    before = console.width
    try:
        for one in tables:
            console.width = max(before, Measurement.get(console, options, one).minimum)
            console.print(one)
    finally:
        console.width = before
