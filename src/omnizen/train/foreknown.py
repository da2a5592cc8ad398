"""plan="auto" where facts and prices of this job were measured before: a whole strategy from the first step on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from omnizen.errors import UserError
from omnizen.measure.facts import Facts
from omnizen.measure.model import model_digest
from omnizen.measure.texts import gather_texts
from omnizen.plan.plan import Plan, what_differs
from omnizen.plan.strategies import plan_strategy
from omnizen.strategies import groups, local_sgd
from omnizen.train.checks import check_model, check_optimizers
from omnizen.train.choice import watches
from omnizen.train.everyone import on_everyone
from omnizen.train.groups.setup import check_groups
from omnizen.train.hyper import check_momentum
from omnizen.train.loader import can_share
from omnizen.train.local_checks import check_local
from omnizen.train.pulls import may_be_lazy
from omnizen.train.voice import say

if TYPE_CHECKING:
    from omnizen.train.prepare import Wishes
    from omnizen.train.run import Run

KEPT = "facts-before.toml"
"""Where prices are put that a run of another job found in its folder, before it writes facts of its own."""


@dataclass(frozen=True, slots=True)
class Foreknown:
    """What was decided before the first step.

    Args:
        plan: chosen among all strategies; None where the first steps are measured first.
        facts: that it rests on.
        lazy: tables that may be pulled lazily.
        remarks: where facts were found, for the line that announces the plan.
    """

    plan: Plan | None = None
    facts: Facts | None = None
    lazy: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()


def foreknown(
    run: Run, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], loader: Any, wishes: Wishes
) -> Foreknown:
    """Plan from facts with prices, where there are such of this job (collective; the same on all ranks).

    Rank 0 looks at ``run.prepare(facts=...)``, else at the run directory's ``facts.toml``. What does not fit is not
    used, and said.

    Raises:
        UserError: ``facts=`` names no file that can be read, or goes with another plan than "auto".
    """

    def look() -> str:
        if wishes.facts is not None and wishes.plan != "auto":
            raise UserError("facts= is what plan='auto' decides from; leave it out, or leave plan out")
        if not watches(wishes.plan, run.size):
            return ""
        check_model(model, run.size)
        run.optimizers = check_optimizers(optimizer, model)
        return "" if run.rank else json.dumps(_look(run, model, loader, wishes))

    gather = partial(gather_texts, run.control)
    text = gather(on_everyone(gather, look))[0]
    if not text or not watches(wishes.plan, run.size):
        return Foreknown()
    found = json.loads(text)
    if not found["plan"]:
        return Foreknown()
    plan, facts = Plan.from_toml(found["plan"]), Facts.from_toml(found["facts"])
    return Foreknown(plan, facts, frozenset(found["lazy"]), (found["remark"],))


def _look(run: Run, model: nn.Module, loader: Any, wishes: Wishes) -> dict[str, Any]:
    """Plan on rank 0."""
    nothing = {"plan": ""}
    path = None if run.run_dir is None else run.run_dir / "facts.toml"
    if wishes.facts is None and (path is None or not path.exists()):
        return nothing
    facts, source, unfit = _load(wishes.facts, path)
    if facts is not None:
        unfit = what_differs(facts, run.size, model_digest(model), torch.__version__)
        if not facts.prices:
            if wishes.facts is None:
                return nothing
            unfit = unfit or "a job whose strategies have no [[prices]] yet, which `omnizen tune` measures"
    if facts is None or unfit:
        kept = ""
        if wishes.facts is None and path is not None and (facts is None or facts.prices):
            path.replace(path.with_name(KEPT))
            kept = f" (kept as {path.with_name(KEPT)})"
        say(f"{source} is not used{kept}: it is of {unfit}; the first steps are measured again")
        return nothing
    lazy = may_be_lazy(model, run.optimizers, wishes.scaler) if wishes.reads is not None else frozenset()
    facts = _without_rows_that_wait(facts, lazy)
    plan = plan_strategy(facts, lazy=lazy, ruled_out=_ruled_out(run, facts, loader, wishes))
    remark = f"by facts and prices of {source}" + f" from {facts.created}" * bool(facts.created)
    return {"plan": plan.to_toml(), "facts": facts.to_toml(), "lazy": sorted(lazy), "remark": remark}


def _load(given: str | Path | Facts | None, path: Path | None) -> tuple[Facts | None, str, str]:
    """Return facts, what to call them, and why they cannot be read."""
    if isinstance(given, Facts):
        return given, "facts=", ""
    if given is not None:
        return Facts.load(given), str(given), ""
    assert path is not None
    try:
        return Facts.load(path), str(path), ""
    except UserError as error:
        return None, str(path), f"no use ({error})"


def _without_rows_that_wait(facts: Facts, lazy: frozenset[str]) -> Facts:
    """Let tables be pulled lazily only where this run can."""
    if not any(gradient.lazy and gradient.name not in lazy for gradient in facts.gradients):
        return facts
    gradients = [g.model_copy(update={"lazy": g.lazy and g.name in lazy}) for g in facts.gradients]
    return facts.model_copy(update={"gradients": gradients})


def _ruled_out(run: Run, facts: Facts, loader: Any, wishes: Wishes) -> dict[str, str]:
    """Return what this run could not follow, with reasons: strategies, and "shares" for uneven batches."""
    found: dict[str, str] = {}

    def try_out(name: str, check: Callable[[], object]) -> None:
        try:
            check()
        except UserError as error:
            found.setdefault(name, str(error))

    try_out("groups", lambda: check_groups(groups(run.size), run, (), wishes.scaler))
    try_out(
        "local",
        lambda: check_local(local_sgd(), run.size, loader, wishes.reduction, wishes.reads, wishes.values),
    )
    for name in ("groups", "local"):
        if wishes.balance is not None:
            found.setdefault(name, "balance= asks for steps that all ranks take together")
        if any(price.strategy == name and price.momentum is not None for price in facts.prices):
            try_out(name, lambda: check_momentum(run.optimizers))
    if not can_share(loader):
        left = "run.prepare() leaves this loader as it is, so every rank reads its own batches"
        found.setdefault("local", left)
        found["shares"] = left
    elif wishes.balance not in (None, "auto"):
        found["shares"] = "balance= says how batches are shared"
    return found
