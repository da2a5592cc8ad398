"""``omnizen bench balance``: unequal workers, and what balanced batches make of them."""

from __future__ import annotations

from typing import Annotated

import typer

from omnizen.cli.options import CPU, DILATION, JSON, RATE


def register(bench: typer.Typer) -> None:
    """Add the command to those of ``bench``."""
    bench.command("balance")(balance)


def balance(
    case: Annotated[str, typer.Option(help="What to train: cnn or lm.")] = "cnn",
    hosts: Annotated[int, typer.Option(help="How many workers.")] = 4,
    cpu: CPU = "1,1,1,0.33",
    rate: RATE = "1gbit",
    dilation: DILATION = "auto",
    batch: Annotated[int | None, typer.Option(help="Samples a worker and step where batches are even.")] = None,
    methods: Annotated[
        str, typer.Option(help="Comma-separated: even, balanced, balanced-from-even, paper-from-even.")
    ] = "even,balanced-from-even,balanced",
    steps: Annotated[int, typer.Option(help="Steps of each method; even takes a quarter.")] = 30,
    alone: Annotated[float, typer.Option(help="Seconds for which each worker is measured by itself.")] = 5.0,
    seed: Annotated[int, typer.Option(help="Of the model and the order of the data.")] = 0,
    pin: Annotated[bool, typer.Option("--pin", help="Keep each worker's threads on one core.")] = False,
    json: JSON = None,
) -> None:
    """Measure each worker alone, then all together with even and with balanced batches."""
    from rich.console import Console

    from omnizen.bench import balance as bench
    from omnizen.bench.rows import adding
    from omnizen.cli.lists import dilation_factor, numbers, words
    from omnizen.errors import UserError

    settings = bench.Settings(
        case=case, hosts=hosts, cpu=tuple(numbers(cpu, "--cpu", float)), rate=rate,
        dilation=dilation_factor(dilation), batch=batch, methods=tuple(words(methods)), steps=steps, alone_s=alone,
        seed=seed, pin=pin,
    )  # fmt: skip
    keep = adding(json)
    console = Console()
    rows = bench.run_balance(settings, on_line=lambda text: console.print(text, highlight=False, markup=False))
    keep(rows)
    console.print(bench.table(rows))
    if all(row.metric == "failed" for row in rows):
        raise UserError("nothing finished; the reason is in the table")
