"""``omnizen bench strategies``: whole strategies in the lab, beside their predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnizen.cli.options import CPU, DILATION, JSON, RATE, given, refuse_beside


def register(bench: typer.Typer) -> None:
    """Add the command to those of ``bench``."""
    bench.command("strategies")(strategies)


def strategies(
    context: typer.Context,
    case: Annotated[str, typer.Option(help="What to train: cnn, lm or flights.")] = "cnn",
    hosts: Annotated[int, typer.Option(help="How many workers.")] = 4,
    cpu: CPU = "",
    rate: RATE = "100mbit",
    dilation: DILATION = "auto",
    batch: Annotated[
        str, typer.Option(help="Comma-separated samples of a worker and step: a configuration each.")
    ] = "",
    kinds: Annotated[str, typer.Option(help="Comma-separated: sync, groups, local.")] = "sync,groups,local",
    rounds: Annotated[int, typer.Option(help="How often each strategy is trained, in turn with the others.")] = 3,
    seconds: Annotated[float, typer.Option(help="For which it is trained in a round.")] = 3.0,
    draws: Annotated[int, typer.Option(help="Prices drawn for each configuration: a case of regret each.")] = 6,
    seed: Annotated[int, typer.Option(help="Of the model and the batches.")] = 0,
    enough: Annotated[float, typer.Option(help="Seconds after which only the first round is completed.")] = 400.0,
    limit: Annotated[float, typer.Option(help="Seconds after which it ends in any case.")] = 600.0,
    summary: Annotated[
        list[Path] | None, typer.Option("--summary", help="Run nothing; say what the rows of these files say.")
    ] = None,
    json: JSON = None,
) -> None:
    """Train synchronously, in groups and with local steps; compare with formulas, simulation and the pick."""
    from rich.console import Console

    from omnizen.bench import strategies as bench
    from omnizen.bench.rows import adding, read
    from omnizen.bench.strategies_verdict import table, verdict
    from omnizen.bench.tables import show
    from omnizen.cli.lists import dilation_factor, numbers, words
    from omnizen.errors import UserError

    console = Console()
    if summary:
        refuse_beside(context, "--summary", given(context) - {"summary"})
        rows = [row for path in summary for row in read(path) if row.bench == "strategies"]
    else:
        settings = bench.Settings(
            case=case, hosts=hosts, cpu=tuple(numbers(cpu, "--cpu", float)) if cpu else (), rate=rate,
            dilation=dilation_factor(dilation), batches=tuple(numbers(batch, "--batch", int)) if batch else (),
            kinds=tuple(words(kinds)), rounds=rounds, seconds=seconds, draws=draws, seed=seed, enough_s=enough,
            limit_s=limit,
        )  # fmt: skip
        keep = adding(json)
        rows = bench.run_strategies(
            settings, on_line=lambda text: console.print(text, highlight=False, markup=False)
        )
        keep(rows)
    show(console, table(rows))
    for line in verdict(rows):
        console.print(line, highlight=False, markup=False)
    wrong = next((row for row in rows if row.metric == "failed"), None)
    if wrong is not None:
        raise UserError(f"not everything was measured: {wrong.params['reason']}")
