"""What local steps refuse, and what they make of a loader and of a reducer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import RandomSampler

from omnizen.errors import UserError
from omnizen.protocols import Reducer
from omnizen.reducers.local_momentum import find
from omnizen.train.dealing import Deal
from omnizen.train.loader import can_share
from omnizen.train.local_counts import StepCounts
from omnizen.train.router import make_reducer

if TYPE_CHECKING:
    from omnizen.strategies.strategy import Strategy


def check_local(strategy: Strategy, ranks: int, loader: Any, reduction: str, reads: object, values: str) -> None:
    """Refuse local steps that cannot work, before anything changes.

    Raises:
        UserError: says what is in the way.
    """
    counts = StepCounts(strategy.every, ranks, most=strategy.most)
    if reduction != "mean":
        raise UserError(
            "local steps go with reduction='mean' only: a rank steps on its own batch, so its loss is a mean"
        )
    if reads is not None:
        raise UserError("reads: names rows of lazily pulled tables, which local steps do not have; leave it out")
    if strategy.share == "delta":
        settled(make_reducer("dense" if strategy.reducer == "auto" else strategy.reducer, values))
    dealt = can_share(loader)
    if strategy.pool > 1 and not (dealt and isinstance(loader.sampler, RandomSampler)):
        raise UserError(
            f"pool={strategy.pool:g} picks samples of high loss for slow ranks, so run.prepare() must deal them "
            "out: give it a plain DataLoader with shuffle=True"
        )
    if not dealt:
        return
    sampler = loader.sampler
    if isinstance(sampler, RandomSampler) and (sampler.replacement or sampler.num_samples > len(loader.dataset)):
        raise UserError(
            "local steps read each sample at most once an epoch, and this loader's sampler draws some twice; use "
            "shuffle=True"
        )
    largest = deal_of(strategy, counts.now, loader).largest_pool(len(sampler))
    if not counts.by_speed and strategy.pool > largest:
        raise UserError(
            f"pool={strategy.pool:g} draws more samples than there are; at most {largest:.4g} with these "
            f"{len(sampler)} samples and local steps (all samples over those that slow ranks read)"
        )


def deal_of(strategy: Strategy, counts: tuple[int, ...], loader: Any) -> Deal:
    """Return how a loader's samples are dealt."""
    return Deal(
        counts=counts,
        batch=loader.batch_size,
        accumulate=strategy.accumulate,
        drop_last=loader.drop_last,
        pool=strategy.pool,
    )


def settled(reducer: Reducer) -> Reducer:
    """Return a reducer for differences of parameters: without momentum of its own, which the optimizers have here.

    Raises:
        UserError: one with which ranks would drift apart, or that moves weights before the gradient is taken.
    """
    found = find(reducer)
    if not reducer.agrees:
        raise UserError(f"{reducer.name} gives ranks different results, so differences of parameters cannot use it")
    if found is None:
        return reducer
    if found.detached or found.weight_decay:
        raise UserError(
            f"{reducer.name} moves weights before gradients are taken, or decays them, which local steps leave to "
            "the optimizer; use a scheme without detached error feedback"
        )

    def rebuilt(each: Any) -> Any:
        return replace(each, momentum=0.0) if each is found else replace(each, reducer=rebuilt(each.reducer))

    same: Reducer = rebuilt(reducer)
    return same
