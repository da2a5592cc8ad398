"""``omnizen bench curves``: what lossy schemes cost in accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnizen.cli.options import JSON, given, refuse_beside


def register(bench: typer.Typer) -> None:
    """Add the command to those of ``bench``."""
    bench.command("curves")(curves)


def curves(
    context: typer.Context,
    case: Annotated[str, typer.Option(help="Comma-separated: images, text.")] = "images,text",
    curve: Annotated[str, typer.Option(help="Comma-separated names of curves; all unless given.")] = "",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of a run.")] = 150,
    tests: Annotated[int, typer.Option(min=2, help="How often a run is tested.")] = 11,
    seeds: Annotated[int, typer.Option(min=1, help="Models and batches to try the best step size on.")] = 3,
    json: JSON = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Draw all rows of the --json file into this page.")
    ] = None,
    draw_only: Annotated[bool, typer.Option("--draw", help="Train nothing, draw what --json holds.")] = False,
) -> None:
    """Train small models on real data by every lossy scheme: loss against steps and against bytes."""
    from rich.console import Console

    from omnizen.bench.curves.chart import write_chart
    from omnizen.bench.curves.run import run_curves, verdict
    from omnizen.bench.curves.settings import names
    from omnizen.bench.curves.tasks import load_task
    from omnizen.bench.rows import Row, adding, read
    from omnizen.errors import UserError
    from omnizen.measure.files import check_apart, check_can_write

    console = Console()
    chosen = names([word.strip() for word in curve.split(",") if word.strip()])
    if draw_only:
        refuse_beside(context, "--draw", given(context) - {"draw_only", "json", "html"})
    if draw_only and json is None:
        raise UserError("--draw needs --json FILE, the rows to draw")
    keep = adding(json)
    if html is not None:
        check_can_write(html)
        check_apart(html, *([json] if json is not None else []))
    rows: list[Row] = []
    for name in [] if draw_only else [word.strip() for word in case.split(",") if word.strip()]:
        for row in run_curves(load_task(name), chosen, steps=steps, tests=tests, seeds=seeds):
            rows.append(row)
            keep([row])
            console.print(
                f"{row.case}: {row.method}: loss {row.value:.3f}, accuracy {row.params['accuracy']:.3f}, step size "
                f"{row.params['lr']:g}, {row.params['rx_bytes'][-1] / 1e6:.2f} MB",
                highlight=False,
            )
    everything = read(json) if json is not None else rows
    for line in verdict(everything):
        console.print(line, highlight=False)
    if html is not None:
        write_chart(everything, html)
        console.print(f"the curves are drawn in {html}")
