"""``omnizen demo``: train the same model over slow links as stock DDP does and as Omnizen plans it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnizen.cli.folders import text_folder


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    workers: Annotated[int, typer.Option(help="How many, each on a host of its own.")] = 4,
    rate: Annotated[str, typer.Option(help="Rate of each link, both ways: 10mbit, 1gbit.")] = "100mbit",
    text: Annotated[
        Path | None,
        text_folder("Train on the text files below this folder."),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds-budget", help="About how long all may take; DDP takes two steps anyway.")
    ] = 240.0,
    paced: Annotated[bool, typer.Option("--paced", help="Pace links in software, even as root.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for runs and report; otherwise a new one here.")] = None,
) -> None:
    """Train a language model on several workers over slow links: stock DDP first, then by Omnizen's plan."""
    typer.echo("Omnizen demo: loading PyTorch ...")
    from datetime import datetime

    from rich.console import Console

    from omnizen.bench.demo import DemoSettings, network, run_demo
    from omnizen.bench.demo_show import Show

    folder = out or Path("omnizen-demo") / datetime.now().strftime("%Y%m%d-%H%M%S")
    settings = DemoSettings(workers=workers, rate=rate, text=text, seconds=seconds, paced=paced, out=folder)
    joined = network(settings)
    try:
        with Show(Console()) as show:
            outcome = run_demo(settings, joined, show)
        show.outcome(joined, outcome)
    except KeyboardInterrupt:
        typer.echo("interrupted; no worker and no link was left behind", err=True)
        raise typer.Exit(130) from None
    except SystemExit as ended:  # SIGTERM or SIGHUP, after the lab has been removed
        typer.echo("ended by a signal; no worker and no link was left behind", err=True)
        raise typer.Exit(int(ended.code or 1)) from None
