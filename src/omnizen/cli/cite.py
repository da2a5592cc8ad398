"""``omnizen cite``: where a method comes from."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("cite")(cite)


def cite(name: str = typer.Argument("", help="A method of the catalogue; all of them when left out.")) -> None:
    """Print the references of a method, or of all methods."""
    from omnizen import catalog
    from omnizen.errors import UserError, nearest

    rows = {**catalog.REDUCERS, **catalog.CODECS, **catalog.SELECTORS, **catalog.WRAPPERS}
    if name and name not in rows:
        raise UserError(f"method: {nearest(name, rows)}")
    by_citation: dict[str, list[str]] = {}
    for method in [name] if name else rows:
        by_citation.setdefault(rows[method].citation, []).append(method)
    for citation, methods in by_citation.items():
        typer.echo(f"% {', '.join(methods)}\n{citation}\n")
