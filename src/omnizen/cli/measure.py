"""``omnizen measure``: the facts that a plan rests on, written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from omnizen.measure.facts import Facts
    from omnizen.train.run import Run

OUT = typer.Option("--out", "-o", help="The file to write.")
MODEL = typer.Option(
    "--model",
    metavar="MODULE:FUNCTION",
    help="Your function of no arguments that returns (model, batches, loss): a module, "
    "{batch size: list of batches} and loss(model, batch). Each rank calls it: the same model everywhere, but "
    "batches of each rank's own (see docs/planning.md).",
)
BUDGET = typer.Option("--budget", help="About how many seconds measuring may take.", min=0.1, max=86_400.0)
TIMEOUT = typer.Option("--timeout", help="Limit of each wait for another rank, in seconds.", min=1.0, max=86_400.0)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("measure")(measure)


def measure(
    out: Annotated[Path, OUT] = Path("facts.toml"),
    model: Annotated[str | None, MODEL] = None,
    budget: Annotated[float, BUDGET] = 10.0,
    timeout: Annotated[float, TIMEOUT] = 60.0,
) -> None:
    """Measure the devices and links of a job, and with --model also your model's speed and gradients.

    Run it as you run training: under torchrun, under `omnizen lab`, or alone for a single machine.
    """
    from rich.console import Console

    from omnizen.measure.job import measure_job
    from omnizen.measure.subject import load_subject
    from omnizen.train.init import init

    subject = load_subject(model) if model else None
    run = init(timeout_s=timeout)
    try:
        _check_out(run, out)
        if subject is not None:
            subject.model.to(run.device)
        facts = measure_job(run.gradients, subject, budget_s=budget)
        if run.rank == 0:
            path = facts.save(out)
            _show(facts, path, Console(highlight=False, soft_wrap=True))
    finally:
        run.close()


def _check_out(run: Run, out: Path) -> None:
    """End all ranks before anything is measured, where rank 0 could not write it."""
    from functools import partial

    from omnizen.measure.files import check_can_write
    from omnizen.measure.texts import gather_texts
    from omnizen.train.everyone import on_everyone

    on_everyone(partial(gather_texts, run.control), lambda: check_can_write(out) if run.rank == 0 else None)


def _show(facts: Facts, path: Path, console: Console) -> None:
    from omnizen.plan.explain import doubts, measured

    doubtful = doubts(facts)
    for line in measured(facts):
        console.print(line, markup=False, style="yellow" if line in doubtful else None)
    if not facts.gradients:
        console.print("the model's speed and gradients were not measured; give --model for a plan", style="yellow")
    console.print(f"facts: {path}", markup=False)
