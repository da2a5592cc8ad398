"""``omnizen plan``: from facts to a plan, and why it is the one; and what more of these machines would give."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omnizen.cli.lists import numbers, some_words, words
from omnizen.cli.options import given, refuse_beside

if TYPE_CHECKING:
    from rich.console import Console

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
ALLOW = typer.Option(
    "--allow",
    help="Lossy schemes that may be chosen where their price was measured, by commas.",
    show_default=False,
)
EXPLAIN = typer.Option("--explain/--no-explain", help="Print what was measured, chosen and rejected, and why.")
AT = typer.Option(
    "--at",
    help="Instead of planning, say what so many machines like these would give: 8,64,512,4096.",
    show_default=False,
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
    context: typer.Context,
    facts: Annotated[Path, FACTS],
    out: Annotated[Path, OUT] = Path("plan.toml"),
    schemes: Annotated[str | None, SCHEMES] = None,
    lazy: Annotated[list[str] | None, LAZY] = None,
    allow: Annotated[str, ALLOW] = "",
    explain: Annotated[bool, EXPLAIN] = True,
    at: Annotated[str | None, AT] = None,
) -> None:
    """Choose how to train and how to synchronise each gradient, from measured facts, and write the plan."""
    from rich.console import Console

    from omnizen.measure.facts import Facts
    from omnizen.measure.files import check_apart
    from omnizen.plan.explain import explain as in_words
    from omnizen.plan.strategies import plan_strategy

    console = Console(highlight=False, soft_wrap=True)
    if at is not None:
        refuse_beside(context, "--at", given(context) - {"facts", "at"})
    known = Facts.load(facts)
    if at is not None:
        _at(console, known, at)
        return
    check_apart(out, facts)
    _check_tables(lazy or [], known)
    made = plan_strategy(
        known,
        schemes=None if schemes is None else some_words(schemes, "--schemes"),
        lazy=frozenset(lazy or []),
        compressions=words(allow),
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


def _at(console: Console, facts: Facts, sizes: str) -> None:
    from omnizen.bench.tables import Kind, show, table
    from omnizen.errors import UserError
    from omnizen.plan.at_scale import assumptions, at_scale
    from omnizen.plan.words import duration

    counts = numbers(sizes, "--at", int)
    if not counts:
        raise UserError(f"--at needs comma-separated numbers of workers, such as 8,64,512, got {sizes!r}")
    columns: dict[str, Kind] = {
        "workers": "number", "strategy": "name", "samples/s": "number", "of the workers'\nown rates": "number",
        "an update\ntakes": "number", "samples\nneeded": "number",
    }  # fmt: skip
    lines = [
        (f"{found.workers:,}", found.title, f"{found.samples_per_s:,.0f}", f"{found.efficiency:.1%}",
         duration(found.update_s), _price(found.price))
        for found in at_scale(facts, counts)
    ]  # fmt: skip
    title = f"What more machines like the {facts.world_size} measured ones would give (simulated)"
    show(console, table(title, columns, lines))
    for line in assumptions(facts):
        console.print(f"- {line}", markup=False)


def _price(price: float | None) -> str:
    return "not measured" if price is None else f"{price:.2f}"
