"""``omnizen tune``: how synchronous, which momentum, which step size, found by training a little in many ways."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from omnizen.cli.options import given, refuse_beside

if TYPE_CHECKING:
    from omnizen.train.tuning.outcome import Outcome

MODEL = typer.Argument(
    metavar="MODULE:FUNCTION",
    help="Your function of no arguments that returns (model, batches, loss), and if you like after these "
    "optimizer(model) and a loader: see docs/tuning.md.",
    show_default=False,
)
OUT = typer.Option("--out", "-o", help="Folder for facts, search, weights and plan; a second call goes on there.")
SEARCH = typer.Option("--search", help="halving, model or grid.")
PROBE = typer.Option("--probe", help="Seconds of a probe; by default what --overhead allows.", show_default=False)
HORIZON = typer.Option("--horizon", help="Seconds that the training is expected to last.")
OVERHEAD = typer.Option("--overhead", help="Share of --horizon that tuning may take.")
TRAIN = typer.Option("--train/--no-train", help="Go on training up to the horizon, looking again now and then.")
BUDGET = typer.Option("--budget", help="About how many seconds measuring devices and links may take.", min=0.1)
SAVE = typer.Option("--save-every", help="Seconds between two writes of the weights while training.")
SEED = typer.Option("--seed", help="Of the order of samples.")
TIMEOUT = typer.Option("--timeout", help="Limit of each wait for another rank, in seconds.", min=1.0, max=86_400.0)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune")(tune)


def tune(
    context: typer.Context,
    model: Annotated[str, MODEL],
    out: Annotated[Path, OUT] = Path("tuned"),
    search: Annotated[str, SEARCH] = "halving",
    probe: Annotated[float | None, PROBE] = None,
    horizon: Annotated[float, HORIZON] = 3600.0,
    overhead: Annotated[float, OVERHEAD] = 0.10,
    train: Annotated[bool, TRAIN] = False,
    budget: Annotated[float, BUDGET] = 10.0,
    save_every: Annotated[float, SAVE] = 300.0,
    seed: Annotated[int, SEED] = 0,
    timeout: Annotated[float, TIMEOUT] = 60.0,
) -> None:
    """Find how synchronous to train your model on these machines, with which momentum and step size, and plan it.

    Run it as you run training: under torchrun, under `omnizen lab`, or alone. Ctrl-C or a kill loses at most one
    probe; the same command goes on. Prices in samples of each strategy are written into the facts.
    """
    import logging

    from omnizen.measure.subject import load_subject
    from omnizen.train.init import init
    from omnizen.train.tuning.ending import common_board
    from omnizen.train.tuning.session import Session
    from omnizen.train.tuning.settings import TuningSettings

    if not train:
        refuse_beside(context, "tuning without --train", given(context) & {"save_every"})
    settings = TuningSettings(
        search=search, probe_s=probe, horizon_s=horizon, overhead=overhead, train=train, measure_s=budget,
        save_every_s=save_every, seed=seed,
    )  # fmt: skip
    subject = load_subject(model)
    run = init(timeout_s=timeout, seed=seed)
    logger = logging.getLogger("omnizen")
    level = logger.level
    logger.setLevel(logging.WARNING)  # a line for each stretch's plan would hide decisions
    try:
        subject.model.to(run.device)
        with _signals() as asked:
            outcome = Session(
                run,
                subject,
                out,
                settings,
                begin=lambda: init(timeout_s=timeout, seed=seed),
                board=common_board(),
                asked_to_end=asked,
                say=lambda text: typer.echo(text),
            ).go()
        if run.rank == 0:
            _show(outcome, out, settings.overhead)
    finally:
        logger.setLevel(level)
        run.close()
    if outcome.interrupted:
        raise typer.Exit(130)


@contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C or SIGTERM end the search in order, and the second at once; gives whether one came."""
    asked: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        asked.append(number)
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        typer.echo("omnizen: ending after this step; a second time ends at once", err=True)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(outcome: Outcome, out: Path, overhead: float) -> None:
    from omnizen.plan.explain import in_brief
    from omnizen.plan.strategies import unsure

    typer.echo(f"tuning took {outcome.tuned_s:.1f} s of probes, {outcome.share:.1%} of the run that it is for; "
               f"the bound is {overhead:.0%}")  # fmt: skip
    if outcome.point is not None:
        typer.echo(f"in the same seconds the lowest loss came with {outcome.point}")
    plan = outcome.plan
    if plan is None:
        return
    typer.echo(f"plan: {in_brief(plan)}")
    for line in unsure(plan):
        typer.echo(f"- {line}")
    chosen = plan.execution
    if chosen is not None and chosen.momentum is not None and chosen.lr is not None:
        typer.echo(
            f"train with lr {chosen.lr:.3g} and momentum {chosen.momentum:.2f}: "
            f"run.prepare(plan={str(out / 'plan.toml')!r}) sets the momentum, the step size is your optimizer's"
        )
    typer.echo(f"written: {out / 'facts.toml'}, {out / 'plan.toml'}; omnizen report {out} draws the search")
