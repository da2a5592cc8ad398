"""What ``run.prepare(plan=...)`` may be given, and what each of it means for the first step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from omnizen.catalog import full_name
from omnizen.errors import LISTS_METHODS, UserError
from omnizen.train.auto import first_routing
from omnizen.train.checks import whole_elements
from omnizen.train.router import Routing, by_patterns, by_plan, by_scheme

if TYPE_CHECKING:
    from omnizen.plan.plan import Plan


MOST_SHOWN = 100
"""Characters of a text that was no plan; longer ones are cut."""


def watches(plan: object, size: int) -> bool:
    """Return whether the first steps are watched before there is a plan."""
    return plan == "auto" and size > 1


def choose_routing(
    model: nn.Module, plan: str | Path | Plan | Mapping[str, str], size: int, values: str, dense_below: int
) -> tuple[str, Routing, Plan | None]:
    """Return a text that ranks can compare, who is synchronised how from the first step on, and the plan if given.

    Raises:
        UserError: what was given is no plan, or one of another job; says what is allowed.
    """
    if watches(plan, size):
        return "auto", first_routing(model, values), None
    if plan == "auto":  # nothing to plan for one rank
        return "auto", Routing({}), None
    if isinstance(plan, str) and not plan.endswith(".toml"):
        plan = full_name(plan)
        _refuse_path(plan)
        return plan, by_scheme(model, plan, values, whole_elements(dense_below)), None
    if isinstance(plan, Mapping):
        said = " ".join(f"{pattern!r}: {scheme!r}," for pattern, scheme in plan.items())
        return said, by_patterns(model, plan, values, whole_elements(dense_below)), None
    if not isinstance(plan, str | os.PathLike) and not hasattr(plan, "to_toml"):
        raise UserError(
            f"plan: 'auto', the name of a scheme, schemes by parameter, a plan or the path of its file, or a "
            f"strategy; got {plan!r}"
        )
    found, routing = by_plan(model, plan, size, values, whole_elements(dense_below))
    return found.to_toml(), routing, found


def _refuse_path(plan: str) -> None:
    """Refuse what was meant as a file; names of schemes have neither slashes nor dots, but in their settings."""
    name = plan.partition("(")[0]
    if not plan.strip():
        raise UserError("plan: got an empty text; give 'auto', the name of a scheme, or the file of a plan")
    if any(mark in name for mark in ("/", "\\", ".")):
        short = plan if len(plan) <= MOST_SHOWN else f"{plan[:MOST_SHOWN]}..."
        there = "is there, but" if short == plan and Path(plan).exists() else "looks like the path of a file;"
        raise UserError(
            f"plan: {short!r} {there} the files of plans, as `omnizen plan` writes them, end in .toml; a scheme is "
            f"given by its name ({LISTS_METHODS})"
        )
