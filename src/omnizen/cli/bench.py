"""``omnizen bench``: our methods beside the field's, every scheme beside the plan's pick, kernels beside torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omnizen.cli import auto, balance, bench_local, bench_plan, bench_strategies, compressors, curves, survey
from omnizen.cli.folders import text_folder
from omnizen.cli.lists import dilation_factor, numbers, words
from omnizen.cli.options import JSON, RATE, given, refuse_beside
from omnizen.errors import UserError

if TYPE_CHECKING:
    from omnizen.bench.rows import Row


QUICK = Annotated[bool, typer.Option("--quick", help="Few steps and few methods: ends within a minute.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    bench = typer.Typer(no_args_is_help=True, help="Compare methods and schemes over shaped links, and kernels.")
    bench.command("e2e")(e2e)
    bench.command("sync")(sync)
    bench.command("codecs")(codecs)
    curves.register(bench)
    auto.register(bench)
    balance.register(bench)
    bench_local.register(bench)
    compressors.register(bench)
    survey.register(bench)
    bench_plan.register(bench)
    bench_strategies.register(bench)
    bench.command("kernels")(kernels)
    app.add_typer(bench, name="bench")


def e2e(
    context: typer.Context,
    case: Annotated[str, typer.Option(help="What to train: lm, flights or cnn.")] = "lm",
    hosts: Annotated[int | None, typer.Option(help="How many workers, 8 unless --quick.")] = None,
    rate: RATE = "100mbit",
    dilation: Annotated[
        str, typer.Option(help="Slow the links with the shared cores: auto, or a factor.")
    ] = "auto",
    batch: Annotated[int, typer.Option(help="Samples (sequences) a worker and step.")] = 32,
    methods: Annotated[
        str, typer.Option(help="Comma-separated; all unless given (ddp-sparse, omnizen with --verify).")
    ] = "",
    repeats: Annotated[int, typer.Option(help="Runs of each method, in turn with the others.")] = 3,
    steps: Annotated[
        int | None, typer.Option(help="Timed steps of a run, at most: 30; with --verify all steps: 100.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Timed steps of a run end about here.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Of the model and the batches.")] = 0,
    text: Annotated[
        Path | None,
        text_folder("Folder of text for the language model."),
    ] = None,
    quick: QUICK = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check losses against one process on the union of the batches.")
    ] = False,
    json: JSON = None,
    keep_runs: Annotated[Path | None, typer.Option(help="Keep events, facts and plans in this folder.")] = None,
) -> None:
    """Train the same model on the same batches over the same links by each method in turn."""
    from dataclasses import replace

    from rich.console import Console

    from omnizen.bench import e2e as bench
    from omnizen.bench.follow import Progress
    from omnizen.bench.rows import adding
    from omnizen.bench.summary import e2e_table
    from omnizen.bench.tables import show

    settings = bench.Settings(
        case=case, hosts=(4 if quick else 8) if hosts is None else hosts, rate=rate,
        dilation=dilation_factor(dilation), batch=batch,
        methods=tuple(words(methods)) if methods else (bench.QUICK if verify else bench.METHODS),
        repeats=repeats, steps=30 if steps is None else steps, budget_s=seconds, seed=seed, keep_runs=keep_runs,
        case_options={} if text is None else {"text": str(text)},
    )  # fmt: skip
    if quick or verify:
        idle = {"repeats", "seconds"} | ({"steps"} if not verify else set())
        refuse_beside(context, "--verify" if verify else "--quick", given(context) & idle)
    if quick:
        settings = replace(settings, **bench.quick(settings, chosen=bool(methods)))
    keep = adding(json)
    console = Console()
    with Progress(console, total=settings.repeats * len(settings.methods)) as progress:
        if verify:
            rows = bench.verify(
                settings, steps=100 if steps is None else steps, follow=progress.follow, on_trial=progress.ended,
                on_rows=keep,
            )  # fmt: skip
        else:
            rows = bench.run_e2e(settings, follow=progress.follow, on_trial=progress.ended, on_rows=keep)
    show(console, e2e_table(rows))
    for row in rows:
        if row.metric == "loss_off_single_process":
            word = "equal" if row.params["same"] else "NOT equal"
            steps = row.params["steps"]
            console.print(f"{row.method}: losses of {steps} steps {word} to one process's (off by {row.value:.1e})")
    _end(rows, json)


def sync(
    context: typer.Context,
    hosts: Annotated[
        str | None, typer.Option(help="Comma-separated numbers of workers; 2,4,8 unless --grid.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows of the gradient.")] = 50_000,
    width: Annotated[int, typer.Option(help="Elements in a row; 1 is element sparsity.")] = 64,
    density: Annotated[str, typer.Option(help="Comma-separated fractions of rows that a worker touches.")] = "0.1",
    skew: Annotated[str, typer.Option(help="Comma-separated: zipf, uniform, blocky (runs of rows).")] = "zipf",
    rate: Annotated[
        str | None, typer.Option(help="Comma-separated rates of the links; 100mbit unless --grid.")
    ] = None,
    schemes: Annotated[str, typer.Option(help="Comma-separated; the whole catalogue unless given.")] = "",
    repeats: Annotated[int, typer.Option(help="Timed reductions of each scheme.")] = 5,
    dilation: Annotated[str, typer.Option(help="Slow the links with the shared cores: auto, or a factor.")] = "1",
    grid: Annotated[
        bool, typer.Option("--grid", help="The 144 points that judge the planner, or those with --hosts, --rate.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the synthetic gradients.")] = 0,
    quick: QUICK = False,
    json: JSON = None,
) -> None:
    """Average synthetic sparse gradients by every scheme; compare with the formulas and the planner's pick."""
    from rich.console import Console

    from omnizen.bench import sync as bench
    from omnizen.bench.rows import adding
    from omnizen.bench.tables import show

    if grid:
        refuse_beside(context, "--grid", given(context) & {"rows", "width", "density", "skew"})
    if quick:
        refuse_beside(context, "--quick", given(context) & {"repeats"})
        hosts, repeats = "4" if hosts is None else hosts, min(repeats, 2)
    if hosts is None:
        hosts = "" if grid else "2,4,8"
    if rate is None:
        rate = "" if grid else "100mbit"
    points = bench.points(
        hosts=numbers(hosts, "--hosts", int), rates=words(rate), rows=rows, width=width,
        densities=numbers(density, "--density", float), skews=words(skew), grid=grid,
    )  # fmt: skip
    if not points:
        raise UserError("there is nothing to reduce: --hosts, --rate, --density and --skew each need a value")
    keep = adding(json)
    console = Console()
    found = bench.run_sync(
        points, schemes=words(schemes), repeats=repeats, dilation=dilation_factor(dilation), seed=seed,
        on_group=lambda text: console.print(text, highlight=False), on_rows=keep,
    )  # fmt: skip
    show(console, *bench.tables(found))
    for line in bench.verdict(found):
        console.print(line, highlight=False)
    _end(found, json)


def codecs(
    elements: Annotated[int, typer.Option(help="Elements of the tensor whose places are packed.")] = 4_000_000,
    density: Annotated[str, typer.Option(help="Comma-separated fractions that are there.")] = "0.001,0.01,0.1",
    codecs: Annotated[str, typer.Option(help="Comma-separated; the whole catalogue unless given.")] = "",
    repeats: Annotated[int, typer.Option(help="Timed rounds of each codec.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the places and of the gradient.")] = 0,
    json: JSON = None,
) -> None:
    """Pack and unpack random places and a real gradient's values by every codec: bits, speed, error."""
    from rich.console import Console

    from omnizen.bench import codecs as bench
    from omnizen.bench.rows import adding
    from omnizen.bench.tables import show

    keep = adding(json)
    console = Console()
    found = bench.run_codecs(
        elements=elements, densities=numbers(density, "--density", float), names=words(codecs), repeats=repeats,
        seed=seed, on_case=lambda text: console.print(text, highlight=False), on_rows=keep,
    )  # fmt: skip
    show(console, *bench.tables(found))
    _end(found, json)


def kernels(
    numel: Annotated[int, typer.Option(help="Elements to select from.")] = 10_000_000,
    density: Annotated[float, typer.Option(help="Fraction of them to keep.")] = 0.01,
    data: Annotated[str, typer.Option(help="Their distributions: normal, laplace or both.")] = "normal,laplace",
    rows: Annotated[int, typer.Option(help="Row numbers to divide by hash.")] = 1_000_000,
    owners: Annotated[str, typer.Option(help="Comma-separated numbers of owners to divide them among.")] = "4,8",
    repeats: Annotated[int, typer.Option(help="Timed calls of each method, in turn with the others.")] = 9,
    seed: Annotated[int, typer.Option(help="Of the data.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the data: ends within some seconds.")] = False,
    json: JSON = None,
) -> None:
    """Time the inner loops on one core beside torch's own ways, and say how good the selection is."""
    from rich.console import Console

    from omnizen.bench import kernels as bench
    from omnizen.bench.rows import adding
    from omnizen.bench.tables import show

    share = 10 if quick else 1
    settings = bench.Settings(
        numel=numel // share, density=density, data=tuple(words(data)), rows=rows // share,
        owners=tuple(numbers(owners, "--owners", int)), repeats=repeats, seed=seed,
    )  # fmt: skip
    if not settings.data and not settings.owners:
        raise UserError("there is nothing to measure: --data or --owners needs a value")
    keep = adding(json)
    console = Console()
    found = bench.run_kernels(settings, lambda text: console.print(text, highlight=False), keep)
    show(console, *bench.tables(found))
    for line in bench.verdict(found):
        console.print(line, highlight=False)
    _end(found, json)


def _end(rows: list[Row], json: Path | None) -> None:
    if json is not None:
        typer.echo(f"{len(rows)} rows were added to {json}")
    if all(r.metric == "failed" for r in rows):
        raise UserError("nothing finished; the reasons are in the table")
