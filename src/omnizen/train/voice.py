"""What a run says without being asked: one line when a plan, or what was asked for by name, comes into force."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omnizen.plan.explain import in_brief
from omnizen.plan.plan import Plan
from omnizen.plan.strategies import worth_measuring

if TYPE_CHECKING:
    from omnizen.strategies.strategy import Strategy
    from omnizen.train.run import Run

LOG = logging.getLogger("omnizen")
"""``logging.getLogger("omnizen").setLevel("WARNING")`` silences it."""


def say(text: str) -> None:
    """Say a line as the program has set logging up, and on standard error where it has not."""
    if LOG.hasHandlers():
        LOG.info(text)
    elif not LOG.disabled and LOG.level <= logging.INFO:
        print(f"omnizen: {text}", file=sys.stderr, flush=True)


def keep_plan(run: Run) -> None:
    """Write facts and plan down where a run has a folder, and note that the plan holds from this step on."""
    if run._record is not None:
        if run.rank == 0:
            run._record.keep({"facts.toml": run.facts, "plan.toml": run.plan})
        run._record.trace()
        if run.plan is not None:
            run._record.plan(run.engine.step, "plan.toml")


def plan_in_force(plan: Plan, step: int, run_dir: Path | None, remarks: Sequence[str] = ()) -> None:
    """Say what the plan chose, what it predicts and where more is told.

    Args:
        remarks: what is not as the plan says.
    """
    more = f"omnizen report {run_dir}" if run_dir is not None else "run.plan, or oz.init(run_dir=...) for a report"
    said = "; ".join(filter(None, [in_brief(plan), *remarks, worth_measuring(plan)]))
    say(f"plan in force from step {step}: {said} (more: {more})")


def asked_for_in_force(strategy: Strategy, schemes: Mapping[str, str], gradients: int, size: int) -> None:
    """Say what was asked for by name, where nothing is planned.

    Args:
        schemes: of parameters that have one of their own; the others are averaged in dense buckets.
        gradients: number of parameters that are trained.
    """
    from omnizen.strategies.groups import ranks_of

    own = Counter(scheme for scheme in schemes.values() if scheme != "dense")
    said = [f"{count} of {gradients} gradients by {scheme}" for scheme, count in own.items()]
    if own.total() < gradients:
        said.append(f"{gradients - own.total()} of {gradients} gradients in dense buckets")
    if strategy.share != "grad":
        steps = list(strategy.every) if isinstance(strategy.every, tuple) else strategy.every
        what = "parameters" if strategy.share == "params" else f"differences through {strategy.reducer}"
        said = [f"local steps ({steps} between two averages of {what})"]
    elif strategy.groups != 1:
        into = ranks_of(strategy.groups if isinstance(strategy.groups, int) else list(strategy.groups), size)
        said.insert(0, f"{len(into)} compute groups of ranks {'; '.join(', '.join(map(str, g)) for g in into)}")
    say(f"in force as asked for: {', '.join(said)}")
