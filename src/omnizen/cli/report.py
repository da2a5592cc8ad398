"""``omnizen report``: the HTML report of one run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RUNS = typer.Argument(help="Run directories; several are shown side by side.", metavar="RUN...", show_default=False)
OUT = typer.Option(
    "--out", "-o", help="The HTML file; otherwise report.html in the run, or in the folder that the runs share."
)
OPEN = typer.Option("--open", help="Open the report in the browser.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    runs: Annotated[list[Path], RUNS],
    out: Annotated[Path | None, OUT] = None,
    open_it: Annotated[bool, OPEN] = False,
) -> None:
    """Write one self-contained HTML report of one or several runs."""
    from rich.console import Console

    from omnizen.report.load import load_runs
    from omnizen.report.page import save_report
    from omnizen.report.words import headline

    loaded = load_runs(runs)
    path = save_report(loaded, out)
    console = Console(highlight=False, soft_wrap=True)
    for sentence in headline(loaded):
        console.print(sentence, markup=False)
    for run in loaded:
        for problem in run.problems:
            console.print(f"note: {run.label}: {problem}", markup=False, style="yellow")
        if (run.path / "trace.json").exists():
            console.print(f"trace (open in ui.perfetto.dev): {run.path / 'trace.json'}", markup=False)
    console.print(f"report: {path}", markup=False)
    if open_it:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            console.print("no browser could be opened; open the file by hand", style="yellow")
