"""What a run says without being asked: one line when a plan comes into force."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omnizen.plan.explain import in_brief
from omnizen.plan.plan import Plan
from omnizen.plan.strategies import worth_measuring

if TYPE_CHECKING:
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
