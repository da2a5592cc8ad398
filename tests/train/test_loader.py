"""Data dealt out: each sample once an epoch, in a shared order, never a rank without a batch."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from omnizen.errors import UserError
from omnizen.train.loader import CountingLoader, ShardedLoader, batch_samples, can_share, step_sizes
from omnizen.train.run import Run
from omnizen.train.shares import Shares
from tests.train.helpers import on_ranks


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def loaders(count: int, ranks: int, **options) -> list[ShardedLoader]:
    return [
        ShardedLoader(DataLoader(numbers(count), **options), rank, ranks, seed=3, count=lambda n: None)
        for rank in range(ranks)
    ]


def epoch(loader) -> list[list[int]]:
    return [batch.tolist() for (batch,) in loader]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_every_size_is_shared_fully_and_evenly(ranks: int, batch: int) -> None:
    for samples in range(ranks, 60):
        sizes = step_sizes(samples, ranks, batch, drop_last=False)
        assert sum(sizes) == samples
        shares = Shares((batch,) * ranks)
        parts = [shares.parts(size, (1, i)) for i, size in enumerate(sizes)]
        assert all(part >= 1 for step in parts for part in step)
        assert max(part for step in parts for part in step) <= batch + 1
        assert [sum(step) for step in parts] == sizes


def test_the_example_of_seven_samples() -> None:
    assert [epoch(loader) for loader in loaders(7, 2, batch_size=2)] == [[[0, 1], [4, 5]], [[2, 3], [6]]]


@pytest.mark.parametrize(("samples", "batch", "drop"), [(2, 4, False), (5, 2, True)])
def test_too_few_samples_are_refused(samples: int, batch: int, drop: bool) -> None:
    with pytest.raises(UserError, match=f"{samples} samples"):
        step_sizes(samples, 3, batch, drop_last=drop)


def test_dropping_the_last_incomplete_global_batch() -> None:
    assert step_sizes(9, 2, 2, drop_last=True) == [4, 4]


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffled_epochs_cover_everything_and_differ(workers: int) -> None:
    made = loaders(23, 3, batch_size=2, shuffle=True, num_workers=workers)
    for _ in range(2):
        passes = [[epoch(loader) for loader in made] for _ in range(2)]
        for one in passes:
            assert sorted(i for rank in one for batch in rank for i in batch) == list(range(23))
        assert passes[0] != passes[1]


def test_the_union_of_a_step_is_the_same_for_every_world() -> None:
    (alone,) = loaders(24, 1, batch_size=8, shuffle=True)
    pair = loaders(24, 2, batch_size=4, shuffle=True)
    assert epoch(alone) == [a + b for a, b in zip(*map(epoch, pair), strict=True)]


def test_sampling_with_replacement_is_shared_too() -> None:
    sampler = RandomSampler(numbers(4), replacement=True, num_samples=12)
    made = [
        ShardedLoader(DataLoader(numbers(4), 3, sampler=sampler), rank, 2, 0, lambda n: None) for rank in range(2)
    ]
    assert [len(made[0]), sum(len(batch) for loader in made for batch in epoch(loader))] == [2, 12]


def test_going_on_in_the_middle_of_an_epoch() -> None:
    (whole,), (first,), (second,) = (loaders(10, 1, batch_size=3, shuffle=True) for _ in range(3))
    expected = [epoch(whole), epoch(whole)]
    batches = iter(first)
    got = [next(batches)[0].tolist(), next(batches)[0].tolist()]
    second.load_state_dict(first.state_dict())
    assert [got + epoch(second), epoch(second)] == expected


def test_the_global_generator_is_not_touched() -> None:
    (loader,) = loaders(10, 1, batch_size=3, shuffle=True)
    before = torch.get_rng_state()
    epoch(loader)
    assert torch.equal(before, torch.get_rng_state())


def test_a_given_generator_orders_the_data() -> None:
    def order(seed: int) -> list:
        def body(run: Run):
            given = torch.Generator().manual_seed(seed + run.rank)  # rank 0's counts
            model = torch.nn.Linear(1, 1)
            loader = DataLoader(numbers(16), batch_size=2, shuffle=True, generator=given)
            return epoch(run.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader, plan="dense")[2])

        return on_ranks(2, body)

    assert order(1) == order(1)
    assert order(1) != order(5)
    assert sorted(i for rank in order(1) for batch in rank for i in batch) == list(range(16))


def test_other_loaders_stay_as_they_are() -> None:
    class Own(RandomSampler):
        pass

    assert not can_share(DataLoader(numbers(4), sampler=Own(numbers(4))))
    assert not can_share(DataLoader(numbers(4), batch_size=None))
    assert not can_share([1, 2])
    counted: list[int] = []
    ended: list[bool] = []
    kept = CountingLoader([{"x": torch.ones(3, 2)}, (torch.ones(2),)], counted.append, lambda: ended.append(True))
    assert len(list(kept)) == len(kept)
    assert (counted, ended) == ([3, 2], [True])


def test_samples_of_a_batch() -> None:
    assert batch_samples(({"name": "a", "x": torch.ones(4, 2)}, torch.ones(9))) == 4
    assert batch_samples("text") == 1
