"""``omnizen plan``: from facts to a plan, and why it is the one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from omnizen.measure.facts import Facts

FACTS = typer.Argument(help="Facts that `omnizen measure` wrote.", metavar="FACTS", show_default=False)
OUT = typer.Option("--out", "-o", help="The file to write.")
SCHEMES = typer.Option("--schemes", help="Consider only these schemes, separated by commas.", show_default=False)
LAZY = typer.Option(
    "--lazy",
    metavar="NAME",
    help="A table that may be pulled lazily: your loop gives reads= for it and its optimizer is row-wise. May be "
    "given several times. Facts of a run with reads= say it themselves.",
    show_default=False,
)
EXPLAIN = typer.Option("--explain/--no-explain", help="Print what was measured, chosen and rejected, and why.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
    facts: Annotated[Path, FACTS],
    out: Annotated[Path, OUT] = Path("plan.toml"),
    schemes: Annotated[str | None, SCHEMES] = None,
    lazy: Annotated[list[str] | None, LAZY] = None,
    explain: Annotated[bool, EXPLAIN] = True,
) -> None:
    """Choose how to synchronise each gradient, from measured facts, and write the plan."""
    from rich.console import Console

    from omnizen.measure.facts import Facts
    from omnizen.plan.explain import explain as in_words
    from omnizen.plan.search import make_plan

    console = Console(highlight=False, soft_wrap=True)
    known = Facts.load(facts)
    _check_tables(lazy or [], known)
    made = make_plan(
        known, schemes=[s.strip() for s in schemes.split(",")] if schemes else None, lazy=frozenset(lazy or [])
    )
    path = made.save(out)
    if explain:
        console.print(in_words(made, known), markup=False)
    console.print(f"plan: {path}", markup=False)


def _check_tables(names: list[str], facts: Facts) -> None:
    from omnizen.errors import UserError, nearest

    kinds = {gradient.name: gradient.kind for gradient in facts.gradients}
    tables = [name for name, kind in kinds.items() if kind == "row-sparse"]
    for name in names:
        if name not in kinds:
            raise UserError(f"--lazy: the facts hold no such gradient: {nearest(name, tables)}")
        if name not in tables:
            raise UserError(f"--lazy: {name} is {kinds[name]}; only tables with row-sparse gradients can be lazy")
