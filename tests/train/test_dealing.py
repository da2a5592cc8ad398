"""Who reads which sample in rounds of local steps."""

from __future__ import annotations

import random

import pytest
import torch

from omnizen.errors import UserError
from omnizen.train.dealing import Deal, deal, unread


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def all_of(dealt, rounds: int | None = None) -> list[int]:
    return [int(i) for rank in dealt for batches in rank[:rounds] for batch in batches for i in batch]


def cases(number: int = 80):
    rng = random.Random(0)
    for _ in range(number):
        counts = [rng.randint(1, 6) for _ in range(rng.randint(1, 4))]
        yield rng.randint(4, 400), counts, rng.randint(1, 5), rng.randint(1, 2), rng.random() < 0.5


@pytest.mark.parametrize(("samples", "counts", "batch", "accumulate", "drop_last"), list(cases()))
def test_each_sample_at_most_once_and_as_many_rounds_everywhere(
    samples, counts, batch, accumulate, drop_last
) -> None:
    how = Deal(counts=tuple(counts), batch=batch, accumulate=accumulate, drop_last=drop_last)
    order = torch.randperm(samples, generator=drawn())
    whole = samples // (batch * accumulate * sum(counts))
    if not whole and not how.tail(samples):
        with pytest.raises(UserError, match="too few for one round"):
            deal(order, how, None, drawn())
        return
    dealt = deal(order, how, None, drawn())
    read = all_of(dealt)
    assert len(set(read)) == len(read)
    assert len({len(rank) for rank in dealt}) == 1
    for rank, rounds in enumerate(dealt):
        assert [[len(b) for b in batches] for batches in rounds[:whole]] == [
            [batch] * counts[rank] * accumulate
        ] * whole
        assert all(1 <= len(b) <= batch for batches in rounds for b in batches)
    if not drop_last and accumulate == 1:
        assert samples - len(read) < len(counts) * min(2, batch)


def test_rounds_and_the_share_of_slow_ranks_follow_the_published_formulas() -> None:
    how = Deal(counts=(32, 32, 1), batch=4, pool=4.0)
    assert how.rounds(1000) == 1000 // (4 * (2 * 32 + 1)) == 3
    assert how.slow == [2]
    assert how.largest_pool(1000) == 1000 / (3 * 1 * 4)


def test_slow_ranks_read_the_highest_losses_of_their_pool_and_the_others_the_rest() -> None:
    samples, how = 600, Deal(counts=(9, 1), batch=4, pool=4.0)
    order = torch.randperm(samples, generator=drawn(1))
    losses = torch.rand(samples, generator=drawn(2))
    fast, slow = deal(order, how, losses, drawn(3))
    hard = torch.cat([b for batches in slow[: how.rounds(samples)] for b in batches])
    pool = order[torch.randperm(samples, generator=drawn(3))[: 4 * len(hard)]]
    assert set(hard.tolist()) == set(pool[losses[pool].topk(len(hard)).indices].tolist())
    assert not torch.equal(hard, hard[losses[hard].argsort(descending=True)]), "read in random order"
    assert len(all_of([fast, slow])) == samples
    assert losses[hard].mean() > losses.mean() + 0.3


def test_a_pool_of_one_and_equal_steps_read_without_regard_to_losses() -> None:
    order, losses = torch.randperm(60, generator=drawn()), torch.rand(60, generator=drawn())
    for how in (Deal(counts=(4, 1), batch=2), Deal(counts=(3, 3), batch=2, pool=4.0)):
        with_losses, without = deal(order, how, losses, drawn()), deal(order, how, None, drawn())
        assert all_of(with_losses) == all_of(without)


def test_what_no_rank_has_read_is_left_in_its_order() -> None:
    order = torch.randperm(50, generator=drawn())
    dealt = deal(order, Deal(counts=(2, 1), batch=3), None, drawn())
    read = set(all_of(dealt, 2))
    assert unread(order, dealt, 2).tolist() == [i for i in order.tolist() if i not in read]
    assert unread(order, dealt, 0).tolist() == order.tolist()
