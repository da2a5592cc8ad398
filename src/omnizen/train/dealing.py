"""Which samples each rank reads in each round of local steps: each sample at most once, every rank done at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omnizen.errors import UserError

SLOW = 0.5
"""Ranks with at most this fraction of the fastest one's steps read samples of high loss, where any do."""

Rounds = list[list[Tensor]]
"""A rank's batches of indices in each round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """How samples are dealt.

    Args:
        counts: each rank's local steps in a round.
        batch: samples of a batch.
        accumulate: batches of a step.
        drop_last: whether samples that fill no whole round are left out.
        pool: samples drawn for each one of high loss that a slow rank reads.
    """

    counts: tuple[int, ...]
    batch: int
    accumulate: int = 1
    drop_last: bool = False
    pool: float = 1.0

    @property
    def quotas(self) -> list[int]:
        """Each rank's samples in a whole round."""
        return [count * self.accumulate * self.batch for count in self.counts]

    @property
    def slow(self) -> list[int]:
        """Ranks that read samples of high loss: none where all are alike."""
        limit = SLOW * max(self.counts)
        return [rank for rank, count in enumerate(self.counts) if count <= limit] if self.pool > 1 else []

    def rounds(self, samples: int) -> int:
        """Return the whole rounds that so many samples give: ``floor(N / (b sum of all ranks' steps))``."""
        return samples // sum(self.quotas)

    def largest_pool(self, samples: int) -> float:
        """Return the largest ``pool``: all samples over those that slow ranks read."""
        read = self.rounds(samples) * sum(self.quotas[rank] for rank in self.slow)
        return samples / read if read else float("inf")

    def tail(self, samples: int) -> list[int]:
        """Return each rank's samples in the last, shorter round: in proportion to its steps, at least two.

        (One sample has no variance, which batch normalisation needs.) Empty where there is none: too little is
        left, or what is left is dropped (as it is with accumulation, since it need not fill whole steps).
        """
        rest, ranks = samples - self.rounds(samples) * sum(self.quotas), len(self.counts)
        least = min(2, self.batch)
        if self.drop_last or self.accumulate > 1 or rest < least * ranks:
            return []
        spread, total = rest - least * ranks, sum(self.counts)
        ends = [spread * sum(self.counts[: rank + 1]) // total for rank in range(ranks)]
        return [least + end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def deal(order: Tensor, how: Deal, losses: Tensor | None, drawn: torch.Generator) -> list[Rounds]:
    """Deal samples out; the same on all ranks.

    Args:
        order: indices ``[N]`` int64 of the samples to read, in a shared random order.
        losses: last loss of every sample of the data set, infinity where it was never read; for ``how.pool``.
        drawn: shared by all ranks; draws the pool.

    Raises:
        UserError: too few samples for one round.

    Example:
        >>> fast, slow = deal(torch.arange(7), Deal(counts=(2, 1), batch=2), None, torch.Generator())
        >>> [b.tolist() for b in fast[0]], [b.tolist() for b in slow[0]]
        ([[0, 1], [2, 3]], [[4, 5]])
    """
    samples, quotas = len(order), how.quotas
    rounds, tail = how.rounds(samples), how.tail(samples)
    if not rounds and not tail:
        raise UserError(
            f"{samples} samples are too few for one round of local steps: it reads {sum(quotas)} "
            f"({'+'.join(map(str, how.counts))} steps of {how.accumulate * how.batch}); take fewer steps or "
            "smaller batches, or drop_last=False without accumulation"
        )
    hard, order = _pick(order, how, rounds, losses, drawn)
    at_slow = rounds * sum(quotas[rank] for rank in how.slow) if hard is not None else 0
    dealt: list[Rounds] = [[] for _ in quotas]
    place = hard_place = 0
    for _ in range(rounds):
        for rank, quota in enumerate(quotas):
            if hard is not None and rank in how.slow:
                part, hard_place = hard[hard_place : hard_place + quota], hard_place + quota
            else:
                part, place = order[place : place + quota], place + quota
            dealt[rank].append(list(part.split(how.batch)))
    assert hard_place == at_slow
    for rank, size in enumerate(tail):
        dealt[rank].append(_even(order[place : place + size], how.batch))
        place += size
    return dealt


def _pick(
    order: Tensor, how: Deal, rounds: int, losses: Tensor | None, drawn: torch.Generator
) -> tuple[Tensor | None, Tensor]:
    """Part the samples: those for slow ranks, of the highest loss in a random pool, and the rest in their order."""
    wanted = rounds * sum(how.quotas[rank] for rank in how.slow)
    if losses is None or not wanted:
        return None, order
    pool = min(len(order), round(how.pool * wanted))
    candidates = order[torch.randperm(len(order), generator=drawn)[:pool]]
    best = torch.argsort(losses[candidates], descending=True, stable=True)[:wanted]
    hard = candidates[best][torch.randperm(wanted, generator=drawn)]
    taken = torch.zeros(len(losses), dtype=torch.bool)
    taken[hard] = True
    return hard, order[~taken[order]]


def _even(part: Tensor, batch: int) -> list[Tensor]:
    """Cut into batches of at most ``batch`` that are as equal as possible."""
    return list(part.tensor_split(-(-len(part) // batch))) if len(part) else []


def unread(order: Tensor, dealt: Sequence[Rounds], rounds: int) -> Tensor:
    """Return what is left of an order after some rounds, in its order."""
    read = [batch for rank in dealt for each in rank[:rounds] for batch in each]
    if not read or not len(order):
        return order
    taken = torch.zeros(int(order.max()) + 1, dtype=torch.bool)
    taken[torch.cat(read)] = True
    return order[~taken[order]]
