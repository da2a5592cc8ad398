"""A plan that holds a whole strategy, made into what ``run.prepare`` carries out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from omnizen.errors import UserError
from omnizen.plan.batch_control import BatchLaw
from omnizen.strategies import groups, local_sgd
from omnizen.strategies.strategy import Strategy
from omnizen.train.hyper import check_momentum, momentum_of
from omnizen.train.loader import can_share

if TYPE_CHECKING:
    from omnizen.plan.plan import Execution, Plan
    from omnizen.train.balance_wish import Balancing


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a run trains by, beside the scheme of each gradient.

    Args:
        strategy: who shares what, when.
        samples: of each rank in a step, by the plan; empty where ranks are alike or nothing was planned. Only their
            proportion counts: the global batch is the loader's.
        balance: what ``run.prepare(balance=...)`` comes to, the plan's samples included.
        momentum: what the optimizers get; None leaves theirs.
        remarks: what a reader of the plan would not expect, in words.
    """

    strategy: Strategy
    samples: tuple[int, ...] = ()
    balance: Balancing = None
    momentum: float | None = None
    remarks: tuple[str, ...] = ()


def set_course(
    plan: Plan | None,
    asked: Strategy,
    *,
    balance: Balancing,
    loader: Any,
    optimizers: Sequence[Optimizer],
    size: int,
) -> Course:
    """Return what is trained by: what the user asked for, and what a plan says.

    Args:
        asked: the strategy that the user named, the usual one where a plan was given.
        balance: as the user gave it. With samples of a synchronous plan, "auto" begins with these; anything else
            replaces them.

    Raises:
        UserError: the plan asks for something that cannot be done.
    """
    chosen = None if plan is None else plan.execution
    if plan is None or (chosen is None and plan.strategy == "sync"):
        return Course(strategy=asked, balance=balance)
    if chosen is None or chosen.strategy != plan.strategy:
        raise UserError(
            f"the plan's strategy is {plan.strategy!r}, and its [execution] "
            f"{'is missing' if chosen is None else f'is {chosen.strategy!r}'}; make it again with `omnizen plan`"
        )
    samples = _samples(chosen, size)
    if chosen.momentum is not None:
        check_momentum(optimizers)
    strategy = _strategy(chosen)
    remarks = []
    if chosen.strategy == "sync":
        balance, remark = _balance(samples, balance, loader)
        remarks += remark
    elif samples and not can_share(loader):
        remarks.append(_yours(samples))
    if chosen.momentum is not None and (yours := momentum_of(optimizers)) != [chosen.momentum]:
        remarks.append(f"momentum was {', '.join(f'{each:g}' for each in yours)}")
    yours = sorted({float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups})
    if chosen.lr is not None and yours != [chosen.lr]:
        remarks.append(
            f"the plan was tuned with lr {chosen.lr:g}, and {', '.join(f'{lr:g}' for lr in yours)} is kept"
        )
    return Course(
        strategy=strategy, samples=samples, balance=balance, momentum=chosen.momentum, remarks=tuple(remarks)
    )


def _strategy(chosen: Execution) -> Strategy:
    if chosen.strategy == "groups":
        return groups(chosen.groups)
    if chosen.strategy == "sync":
        return Strategy()
    steps = chosen.local_steps
    if not steps:
        raise UserError(
            "the plan asks for local steps and does not say how many; make it again with `omnizen plan`"
        )
    every = steps if len(set(steps)) > 1 else steps[0]
    if chosen.compression:
        return local_sgd(every, share="delta", reducer=chosen.compression)
    return local_sgd(every)


def _samples(chosen: Execution, size: int) -> tuple[int, ...]:
    """Return the planned samples of ranks, empty where they are alike."""
    samples = tuple(chosen.batch_shares)
    if len(set(samples)) <= 1:
        return ()
    if len(samples) != size or min(samples) < 1:
        raise UserError(
            f"the plan's batch_shares must give each of {size} ranks a sample or more, got {list(samples)}"
        )
    if chosen.strategy == "local":
        raise UserError(
            "local steps take batches of one size on all ranks, and the plan's batch_shares differ: "
            f"{list(samples)}; give slow ranks fewer local_steps instead"
        )
    return samples


def _balance(samples: tuple[int, ...], given: Balancing, loader: Any) -> tuple[Balancing, list[str]]:
    if not samples:
        return given, []
    shares = tuple(each / math.fsum(samples) for each in samples)
    if given is None:
        return (shares, []) if can_share(loader) else (None, [_yours(samples)])
    if given == "auto":
        return BatchLaw(start=shares), ["batches follow the ranks' speeds from the plan's on, by balance='auto'"]
    return given, ["balance= replaces the plan's samples"]


def _yours(samples: tuple[int, ...]) -> str:
    return (
        "this loader is left as it is, so the samples of ranks are yours to keep: make batches of "
        f"{', '.join(map(str, samples))}"
    )
