"""``omnizen bench plan``: the planner's regret."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnizen.cli.options import JSON, given, refuse_beside


def register(bench: typer.Typer) -> None:
    """Add the command to those of ``bench``."""
    bench.command("plan")(plan)


def plan(
    context: typer.Context,
    cases: Annotated[int, typer.Option(min=1, help="Imagined jobs to judge the planner on.")] = 200,
    first: Annotated[int, typer.Option(min=0, help="Number of the first one.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="50 cases of up to 4 workers: within a minute.")] = False,
    lab: Annotated[
        Path | None, typer.Option("--lab", help="Add regrets from this file of `omnizen bench sync --json` rows.")
    ] = None,
    json: JSON = None,
) -> None:
    """Plan for imagined clusters of unlike machines, and compare with the best of everything, tried there.

    What is tried there moves real rows over simulated links; everything around them is played event by event.
    """
    from rich.console import Console

    from omnizen.bench import plan as bench
    from omnizen.bench.rows import adding, read

    console = Console(highlight=False, soft_wrap=True)
    keep = adding(json)
    if quick and cases > bench.QUICK_CASES:
        refuse_beside(context, f"--quick, which judges {bench.QUICK_CASES} at most,", given(context) & {"cases"})
    in_lab = bench.lab_rows(read(lab)) if lab is not None else []
    rows = bench.run_plan(
        min(cases, bench.QUICK_CASES) if quick else cases, first=first, most_workers=4 if quick else 8,
        on_case=lambda j: console.print(
            f"{j.case.name}: {j.regret['plan']:.2%}" + ("" if j.regret["plan"] <= bench.HIGH else
            f" (picked {j.picks['plan']}; best {j.best})"), markup=False
        ),
        on_rows=keep,
    ) + in_lab  # fmt: skip
    keep(in_lab)
    for line in bench.verdict(rows):
        console.print(line)
    if json is not None:
        console.print(f"{len(rows)} rows were added to {json}")
