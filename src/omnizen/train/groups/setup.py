"""What a run needs before its groups can begin, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from omnizen.errors import UserError
from omnizen.plan.lazy import LAZY
from omnizen.protocols import Comm, HasMailbox
from omnizen.strategies.groups import ranks_of
from omnizen.strategies.strategy import Strategy
from omnizen.train.groups.mirror import check_elementwise
from omnizen.train.groups.tickets import check_sizes

if TYPE_CHECKING:
    from omnizen.train.run import Run


def check_groups(strategy: Strategy, run: Run, schemes: Iterable[str], scaler: torch.amp.GradScaler | None) -> None:
    """Refuse what cannot be trained in groups.

    Raises:
        UserError: says what to change.
    """
    if len(ranks_of(strategy.groups, run.size)) == 1:
        return
    check_elementwise(run.optimizers)
    if LAZY in schemes:
        raise UserError(
            f"reducer={LAZY!r} leaves rows at their owners, and compute groups leave all weights at servers"
        )
    if scaler is not None and len(run.optimizers) > 1:
        raise UserError(
            "compute groups contribute all gradients when the first optimizer steps, and a GradScaler unscales "
            "them one optimizer after the other; use one optimizer, or bfloat16, which needs no scaler"
        )
    if not isinstance(run.control, HasMailbox):
        raise UserError(f"a {type(run.control).__name__} has no mailboxes, which compute groups need")


def inside_groups(run: Run, strategy: Strategy) -> tuple[Comm, Comm]:
    """Return the comms for gradients and for small messages inside this rank's group (collective)."""
    groups = ranks_of(strategy.groups, run.size)
    if len(groups) == 1:
        return run.gradients, run.control
    return comms_inside(run, groups)


def regroup(run: Run, into: int | Sequence[Sequence[int]], samples: Sequence[int]) -> None:
    """Change a run's groups (collective).

    Raises:
        UserError: it does not train in groups, or cannot train in these.
    """
    from omnizen.train.groups.driver import Groups

    if not isinstance(run.driver, Groups):
        raise UserError(
            "run.regroup() changes compute groups, and this run has none; begin with plan=oz.strategies.groups(...)"
        )
    groups = ranks_of(into, run.size)
    if samples and (len(samples) != run.size or min(samples) < 1):
        raise UserError(f"samples: one or more for each of {run.size} ranks, got {list(samples)}")
    if run.engine.piled_up:
        raise UserError("gradients piled up under run.no_sync(); step with them before run.regroup()")
    if run.driver.service.book is not None:
        check_sizes([len(group) for group in groups], run.driver.service.book.samples)
    run.driver.regroup(groups, samples)
    run._note(f"compute groups from this step on: {groups}")


def comms_inside(run: Run, groups: Sequence[Sequence[int]]) -> tuple[Comm, Comm]:
    """Make comms for gradients and for small messages inside this rank's group (collective)."""
    found: list[Comm] = []
    for comm, name in ((run.gradients, "gradients"), (run.control, "control")):
        subs = [comm.sub(group, f"{name} of group {number}") for number, group in enumerate(groups)]
        found += [sub for sub in subs if sub is not None]
    inside, control = found
    return inside, control
