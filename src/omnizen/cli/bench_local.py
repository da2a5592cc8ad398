"""``omnizen bench local`` and ``omnizen bench shards``: unequal hosts, and shards of unequal smoothness."""

from __future__ import annotations

from typing import Annotated

import typer

from omnizen.cli.lists import numbers, words
from omnizen.cli.options import JSON, RATE


def register(bench: typer.Typer) -> None:
    """Add the command to those of ``bench``."""
    bench.command("local")(local)
    bench.command("shards")(shards)


def local(
    case: Annotated[str, typer.Option(help="images or text.")] = "images",
    hosts: Annotated[int, typer.Option(help="How many workers.")] = 2,
    cpu: Annotated[
        str, typer.Option(help="Comma-separated speed of each host, 1 being a core; 1,...,1,0.125 unless given.")
    ] = "",
    rate: RATE = "1gbit",
    methods: Annotated[str, typer.Option(help="Comma-separated; all unless given.")] = "",
    seeds: Annotated[int, typer.Option(help="Models and orders of data.")] = 5,
    samples: Annotated[int, typer.Option(help="Training samples.")] = 6000,
    batch: Annotated[int, typer.Option(help="Samples of a batch.")] = 32,
    lr: Annotated[float, typer.Option(help="Step size of all methods.")] = 0.01,
    steps: Annotated[int, typer.Option(help="Local steps of the fastest host in a round.")] = 16,
    pool: Annotated[float, typer.Option(help="Samples drawn for each hard one that a slow host reads.")] = 4.0,
    seconds: Annotated[float, typer.Option(help="Budget in seconds.")] = 6.0,
    epochs: Annotated[float, typer.Option(help="Budget in epochs, counted over all hosts.")] = 3.0,
    target: Annotated[float, typer.Option(help="Accuracy to reach.")] = 0.82,
    json: JSON = None,
) -> None:
    """Train on unequal hosts: all in step, fast ones alone, local steps (equal, by speed, with hard samples)."""
    from rich.console import Console

    from omnizen.bench import local as bench
    from omnizen.bench.rows import adding
    from omnizen.bench.tables import show
    from omnizen.errors import UserError

    speeds = numbers(cpu, "--cpu", float) or [1.0] * (hosts - 1) + [0.125]
    if len(speeds) != hosts:
        raise UserError(f"--cpu needs one speed for each of {hosts} hosts, got {len(speeds)}")
    keep = adding(json)
    console = Console()
    rows = bench.run_local(
        case=case, cpu=speeds, rate=rate, methods=words(methods),
        seeds=seeds, samples=samples, batch=batch, lr=lr, steps=steps, pool=pool, seconds=seconds, epochs=epochs,
        target=target, on_line=lambda line: console.print(line, highlight=False),
    )  # fmt: skip
    keep(rows)
    show(console, bench.table_of(rows))
    for line in bench.verdict(rows):
        console.print(line, highlight=False)
    for row in rows:
        if row.metric == "failed":
            console.print(f"{row.method}: {row.params['reason']}", highlight=False)
    if all(row.metric == "failed" for row in rows):
        raise UserError("nothing finished")


def shards(
    ranks: Annotated[int, typer.Option(help="Shards, one a rank.")] = 4,
    by: Annotated[str, typer.Option("--split", help="What the shards are sorted by: class or norm.")] = "norm",
    samples: Annotated[int, typer.Option(help="Images of Fashion-MNIST.")] = 1000,
    steps: Annotated[int, typer.Option(min=1, help="Steps of full gradients.")] = 200,
    json: JSON = None,
) -> None:
    """Descend by per-shard step sizes and by a common one, as published and tuned; ranks are threads."""
    from rich.console import Console

    from omnizen.bench import shards as bench
    from omnizen.bench.curves.tasks import load_task
    from omnizen.bench.limits import check_counts
    from omnizen.bench.rows import adding
    from omnizen.bench.tables import show

    check_counts(samples=samples)
    task = load_task("images")
    inputs, targets = task.inputs[:samples].double(), task.targets[:samples]
    parts = bench.split(inputs, targets, ranks, by)
    keep = adding(json)
    rows = bench.run_shards(parts, 10, case=f"images by {by}", steps=steps)
    keep(rows)
    show(Console(), bench.table_of(rows))
