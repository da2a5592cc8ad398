"""Options that several benchmarks share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JSON = Annotated[Path | None, typer.Option("--json", help="Append the rows to this file, one JSON object a line.")]
RATE = Annotated[str, typer.Option(help="Rate of each link, both ways: 100mbit, 1gbit.")]
CPU = Annotated[str, typer.Option(help="Comma-separated relative speeds, 1 for the fastest.")]
DILATION = Annotated[str, typer.Option(help="Slow links and processors: auto, or a factor.")]


def given(context: typer.Context) -> set[str]:
    """Return the parameters that the command line names."""
    sources = ((p.name, context.get_parameter_source(p.name)) for p in context.command.params if p.name)
    return {name for name, source in sources if source is not None and source.name == "COMMANDLINE"}


def refuse_beside(context: typer.Context, option: str, without_effect: set[str]) -> None:
    """Refuse what the command line names and another option would leave without effect.

    Raises:
        UserError: there is such a parameter; names all of them.
    """
    from omnizen.errors import UserError

    named = [p for p in context.command.params if p.name in without_effect]
    if named:
        words = ", ".join(p.opts[0] if p.param_type_name == "option" else (p.name or "").upper() for p in named)
        raise UserError(f"beside {option} this has no effect: {words}; leave out one or the other")
