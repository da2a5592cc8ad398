"""What ``run.prepare(balance=...)`` may be given, and the batch sizes that a run begins with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from omnizen.errors import UserError, nearest
from omnizen.measure.flops import flops_per_s
from omnizen.measure.texts import gather_texts
from omnizen.plan.apportion import apportion
from omnizen.plan.batch_control import BatchControl, BatchLaw
from omnizen.train.loader import can_share
from omnizen.train.shares import Shares

if TYPE_CHECKING:
    from omnizen.train.run import Run

Balancing = str | BatchLaw | Sequence[float] | None
"""What ``run.prepare(balance=...)`` takes: "auto", a law, or fixed shares that sum to 1."""
OFF_ONE = 1e-3
"""Shares may miss 1 by so much, from rounding."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for, checked.

    Args:
        global_batch: samples of all ranks a step.
        law: how sizes follow times; None leaves them.
        shares: fixed ones; None without.
    """

    global_batch: int
    law: BatchLaw | None
    shares: tuple[float, ...] | None


def check_balance(balance: Balancing, loader: Any, size: int, *, synchronous: bool = True) -> Wanted | None:
    """Return what is asked for, None where nothing is.

    Args:
        synchronous: whether the strategy averages the gradients of every step.

    Raises:
        UserError: not to be understood, or impossible with this loader; says what is allowed.
    """
    if balance is None:
        return None
    if not synchronous:
        raise UserError(
            "balance evens out the steps of ranks that wait for each other in every one; this strategy gives each "
            "rank its own pace: leave balance away"
        )
    law, shares = _law_or_shares(balance, size)
    if loader is not None and not can_share(loader):
        raise UserError(
            "balance: run.prepare() deals out plain DataLoaders (a map-style data set, in order or shuffled), and "
            "this loader is left as it is; give it one of those, or pass loader=None and "
            "balance=BatchLaw(global_batch=...) and make batches of run.batch_sizes[run.rank] samples yourself"
        )
    asked = law.global_batch if law is not None else None
    total = loader.batch_size * size if loader is not None else asked
    if total is None:
        raise UserError(
            "balance without a loader needs the samples of all ranks a step: balance=BatchLaw(global_batch=...)"
        )
    if law is not None and law.global_batch not in (None, total):
        raise UserError(
            f"balance: global_batch is {law.global_batch}, but the loader's is {total} ({size} ranks x "
            f"{loader.batch_size})"
        )
    wanted = Wanted(total, law, shares)
    first_sizes(wanted, shares or (1.0,) * size)  # all bounds can be kept
    return wanted


def _law_or_shares(balance: Any, size: int) -> tuple[BatchLaw | None, tuple[float, ...] | None]:
    if isinstance(balance, BatchLaw):
        return balance, _shares(balance.start, size) if not isinstance(balance.start, str) else None
    if isinstance(balance, str):
        if balance != "auto":
            raise UserError(f"balance: {nearest(balance, ['auto'])}, a BatchLaw, or shares that sum to 1")
        return BatchLaw(), None
    return None, _shares(balance, size)


def _shares(given: Any, size: int) -> tuple[float, ...]:
    try:
        shares = tuple(float(share) for share in given)
    except (TypeError, ValueError):
        raise UserError(
            f"balance: 'auto', a BatchLaw, or a share for each rank, such as [0.5, 0.25, 0.25]; got {given!r}"
        ) from None
    if len(shares) != size:
        raise UserError(f"balance: a share for each of {size} ranks, got {len(shares)}")
    if not all(0 < share < math.inf for share in shares):
        raise UserError(f"balance: each share must be a number above 0, got {list(shares)}")
    total = math.fsum(shares)
    if abs(total - 1) > OFF_ONE:
        scaled = [round(share / total, 4) for share in shares]
        raise UserError(f"balance: shares must sum to 1, these sum to {total:.6g}; did you mean {scaled}?")
    return shares


def first_sizes(wanted: Wanted, shares: Sequence[float]) -> tuple[int, ...]:
    """Return the batch sizes of a start with these shares, within the law's bounds."""
    law = wanted.law or BatchLaw()
    most = None if law.most is None else (law.most,) * len(shares)
    return apportion(wanted.global_batch, shares, least=law.least, most=most)


def open_loop(wanted: Wanted, gather: Callable[[str], list[str]], device: torch.device) -> tuple[int, ...]:
    """Return the first batch sizes: by given shares, else by how fast each rank multiplies (collective)."""
    if wanted.shares is not None:
        return first_sizes(wanted, wanted.shares)
    ranks = len(gather(""))  # all begin to measure together, as they will train
    if ranks == 1 or wanted.law is None or wanted.law.start == "even":
        return first_sizes(wanted, (1.0,) * ranks)
    return first_sizes(wanted, [float(text) for text in gather(repr(flops_per_s(device)))])


def first_batches(
    run: Run, wanted: Wanted | None, model: torch.nn.Module, loader: Any
) -> tuple[Shares | None, BatchControl | None]:
    """Return the shares for a loader that is dealt out, and what changes them (collective)."""
    if wanted is None:
        return None, None
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    sizes = open_loop(wanted, partial(gather_texts, run.control), device)
    shares = None if loader is None else Shares(sizes, moving=wanted.law is not None)
    return shares, None if wanted.law is None else BatchControl(sizes, wanted.law)
