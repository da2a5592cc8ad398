"""``omnizen bench compressors``: when does compression pay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnizen.cli.lists import words
from omnizen.cli.options import JSON, given, refuse_beside


def register(bench: typer.Typer) -> None:
    """Add the command to those of ``bench``."""
    bench.command("compressors")(compressors)


def compressors(
    context: typer.Context,
    case: Annotated[str, typer.Option(help="Whose gradients: lm, cnn or flights.")] = "lm",
    model: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="Your own model in place of a case (see measure).")
    ] = None,
    hosts: Annotated[int, typer.Option(help="How many workers.")] = 8,
    rate: Annotated[str, typer.Option(help="Comma-separated rates; 10mbit to 10gbit unless given.")] = "",
    schemes: Annotated[
        str, typer.Option(help="Names, or texts with settings, separated by ';'; the whole catalogue unless given.")
    ] = "",
    batch: Annotated[int, typer.Option(min=1, help="Samples of a worker, for a case.")] = 32,
    repeats: Annotated[int, typer.Option(help="Timed reductions of each scheme.")] = 5,
    verify: Annotated[
        str, typer.Option(help="Train by these schemes in the lab too, at the first rate: names separated by ';'.")
    ] = "",
    json: JSON = None,
    html: Annotated[Path | None, typer.Option("--html", help="Draw the rows into this page.")] = None,
) -> None:
    """Time every compressor's parts on a model's real gradients, and predict its steps for any bandwidth."""
    from rich.console import Console

    from omnizen.bench.compressors import run as bench
    from omnizen.bench.compressors.chart import write_chart
    from omnizen.bench.rows import adding
    from omnizen.bench.tables import show
    from omnizen.errors import UserError
    from omnizen.lab import parse_rate
    from omnizen.measure.files import check_apart, check_can_write
    from omnizen.measure.subject import load_subject

    if model is not None:
        refuse_beside(context, "--model", given(context) & {"case", "batch"})
    rates = words(rate) or list(bench.RATES)
    chosen, tried = ([word.strip() for word in text.split(";") if word.strip()] for text in (schemes, verify))
    settings = bench.Settings(
        case=model or case, hosts=hosts, rates_mbit=tuple(parse_rate(r) / 1e6 for r in rates),
        schemes=(*chosen, *tried), repeats=repeats,
    )  # fmt: skip
    bench.check_schemes(settings.schemes)
    if model is not None and tried:
        raise UserError("--verify trains one of the cases; leave --model out")
    keep = adding(json)
    if html is not None:
        check_can_write(html)
        check_apart(html, *([json] if json is not None else []))
    subject = load_subject(model) if model else bench.case_subject(case, hosts, batch)
    if not chosen:
        everything = bench.all_schemes(any(getattr(m, "sparse", False) for m in subject.model.modules()))
        settings = bench.replace(settings, schemes=tuple(everything))
    console = Console()
    rows = bench.run_compressors(subject, settings, on_rows=keep)
    if tried:
        found = bench.verify(settings, rows, tried, settings.rates_mbit[0], batch=batch)
        keep(found)
        rows += found
        for row in found:
            said = (
                row.params.get("reason")
                or f"{row.value:.3f} s measured, {row.params['predicted_step_s']:.3f} predicted"
            )
            console.print(f"{row.method} at {row.rate_mbit:g} Mbit/s: {said}", highlight=False)
    show(console, bench.table([row for row in rows if row.rate_mbit is None or row.metric == "predicted_step_s"]))
    if html is not None:
        write_chart(rows, html)
        console.print(f"the charts are drawn in {html}")
    if json is not None:
        console.print(f"{len(rows)} rows were added to {json}")
