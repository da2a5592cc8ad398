"""``omnizen cite``: where a method comes from, and which methods there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table


SCHEMES = "reducers: ways to average (schemes)"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("cite")(cite)


def cite(
    name: Annotated[str, typer.Argument(help="A method of the catalogue; all of them when left out.")] = "",
    listed: Annotated[bool, typer.Option("--list", help="List all methods with what they do.")] = False,
) -> None:
    """Print the references of a method, or of all methods."""
    from omnizen import catalog
    from omnizen.errors import LISTS_METHODS, UserError, nearest

    if listed:
        if name:
            raise UserError("--list lists all methods; it goes with no name")
        from rich.console import Console

        from omnizen.bench.tables import show

        show(Console(), *methods())
        return
    name = catalog.full_name(name)
    rows = {**catalog.REDUCERS, **catalog.CODECS, **catalog.SELECTORS, **catalog.WRAPPERS}
    if name and name not in rows:
        raise UserError(f"method: {nearest(name, rows, listed_by=LISTS_METHODS)}")
    by_citation: dict[str, list[str]] = {}
    for method in [name] if name else rows:
        by_citation.setdefault(rows[method].citation, []).append(method)
    for citation, methods_of_it in by_citation.items():
        typer.echo(f"% {', '.join(methods_of_it)}\n{citation}\n")


def methods() -> list[Table]:
    """Return the catalogue as tables."""
    from collections.abc import Mapping

    from omnizen import catalog
    from omnizen.bench.tables import table
    from omnizen.catalog_rows import LAZY, LAZY_SUMMARY, SHORT, Row

    found: dict[str, Mapping[str, Row]] = {
        SCHEMES: catalog.REDUCERS,
        "codecs: ways to pack": catalog.CODECS,
        "selectors: which elements are sent": catalog.SELECTORS,
        "wrappers: around reducers or between codecs": catalog.WRAPPERS,
    }
    lines = {title: [(name, row.summary) for name, row in rows.items()] for title, rows in found.items()}
    lines[SCHEMES] += [(name, f"another name of {row}") for name, row in SHORT.items()]
    lines[SCHEMES].append((LAZY, f"{LAZY_SUMMARY}; with run.prepare(reads=...)"))
    return [table(title, {"name": "name", "what it does": "text"}, rows) for title, rows in lines.items()]
