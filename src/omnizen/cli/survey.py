"""``omnizen bench survey``: synchronisation, architecture, compression and scheduling, every way with every."""

from __future__ import annotations

from typing import Annotated

import typer

from omnizen.cli.lists import words
from omnizen.cli.options import JSON, given, refuse_beside


def register(bench: typer.Typer) -> None:
    """Add the command to those of ``bench``."""
    bench.command("survey")(survey)


def survey(
    context: typer.Context,
    case: Annotated[str, typer.Option(help="Comma-separated: images, text.")] = "text",
    steps: Annotated[int, typer.Option(help="Optimizer steps of a run.")] = 120,
    seeds: Annotated[int, typer.Option(help="Runs of each cell at its best step size.")] = 3,
    rate: Annotated[str, typer.Option(help="Comma-separated rates to predict for.")] = "10mbit,100mbit,1gbit",
    quick: Annotated[bool, typer.Option("--quick", help="Few steps, one seed: ends within a minute.")] = False,
    json: JSON = None,
) -> None:
    """Train a small model in every cell of the survey's grid, and predict each cell's step."""
    from rich.console import Console

    from omnizen.bench import survey as bench
    from omnizen.bench.curves.tasks import load_task
    from omnizen.bench.rows import adding
    from omnizen.bench.tables import show
    from omnizen.lab import parse_rate

    rates = tuple(parse_rate(word) / 1e6 for word in words(rate))
    settings = bench.Settings(steps=steps, seeds=seeds, rates_mbit=rates)
    if quick:
        refuse_beside(context, "--quick", given(context) & {"steps", "seeds"})
        settings = bench.quick(settings)
    keep = adding(json)
    console = Console()
    rows = []
    for name in words(case):
        found = bench.run_survey(
            load_task(name), settings, on_cell=lambda text: console.print(text, highlight=False), on_rows=keep
        )
        rows += found
    show(console, bench.table(rows))
    if json is not None:
        console.print(f"{len(rows)} rows were added to {json}")
