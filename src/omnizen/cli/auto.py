"""``omnizen bench auto``: time to a target loss when groups, momentum and step size are found by themselves."""

from __future__ import annotations

from typing import Annotated

import typer

from omnizen.cli.options import CPU, DILATION, JSON, RATE


def register(bench: typer.Typer) -> None:
    """Add the command to those of ``bench``."""
    bench.command("auto")(auto)


def auto(
    case: Annotated[str, typer.Option(help="What to train: cnn or lm.")] = "cnn",
    hosts: Annotated[int, typer.Option(help="How many workers.")] = 4,
    cpu: CPU = "1,1,1,0.33",
    rate: RATE = "100mbit",
    dilation: DILATION = "auto",
    batch: Annotated[int | None, typer.Option(help="Samples of each group's batch.")] = None,
    target: Annotated[float | None, typer.Option(help="Mean of the last losses that ends a run.")] = None,
    methods: Annotated[
        str, typer.Option(help="Comma-separated: auto, best-fixed (18 runs), sync-even-m0.9, async-m0.9.")
    ] = "auto,sync-even-m0.9,async-m0.9",
    seconds: Annotated[float, typer.Option(help="Seconds after which a run ends without its target.")] = 120.0,
    probe: Annotated[float, typer.Option(help="Seconds of a probe.")] = 4.0,
    search: Annotated[str, typer.Option(help="How the tuner searches: model, halving or grid.")] = "model",
    overhead: Annotated[float, typer.Option(help="Largest share of the seconds for probes.")] = 0.10,
    seed: Annotated[int, typer.Option(help="Of the model and the order of the data.")] = 0,
    json: JSON = None,
) -> None:
    """Train to a target loss by the automatic optimizer and by fixed settings; searching counts."""
    from rich.console import Console

    from omnizen.bench import auto as bench
    from omnizen.bench.rows import adding
    from omnizen.bench.tables import show
    from omnizen.cli.lists import dilation_factor, numbers, words
    from omnizen.errors import UserError

    settings = bench.Settings(
        case=case, hosts=hosts, cpu=tuple(numbers(cpu, "--cpu", float)), rate=rate,
        dilation=dilation_factor(dilation), batch=batch, target=target, methods=tuple(words(methods)),
        most_s=seconds, probe_s=probe, search=search, overhead=overhead, seed=seed,
    )  # fmt: skip
    keep = adding(json)
    console = Console()
    rows = bench.run_auto(
        settings, on_line=lambda text: console.print(text, highlight=False, markup=False), on_rows=keep
    )
    found = [bench.table(rows), bench.decisions(rows)]
    show(console, *(each for each in found if each is not None))
    if all(row.metric == "failed" for row in rows):
        raise UserError("nothing reached the target; the reasons are in the table")
