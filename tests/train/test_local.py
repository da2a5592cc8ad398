"""Local steps, beside the same written out by hand in one process."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen.errors import NotFinite, UnevenInputs
from omnizen.strategies import local_sgd
from omnizen.train.run import Run
from tests.train.helpers import assert_close, assert_equal, on_ranks, weights

STEP = {"lr": 0.05, "momentum": 0.9}


def make_model(*, norm: bool = True, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(6)] if norm else []
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.Tanh(), nn.Linear(6, 1)).double()


def batches(rank: int, number: int, size: int = 5) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(100 + rank)
    return [
        (torch.randn(size, 4, generator=generator).double(), torch.randn(size, 1, generator=generator).double())
        for _ in range(number)
    ]


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    optimizer.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    optimizer.step()


def by_hand(counts: list[int], rounds: int, shares: list[float], model: nn.Module) -> dict[str, Tensor]:
    """Average parameters and statistics after each round; momentum stays each rank's."""
    models = [copy.deepcopy(model) for _ in counts]
    optimizers = [torch.optim.SGD(m.parameters(), **STEP) for m in models]
    data = [iter(batches(rank, count * rounds)) for rank, count in enumerate(counts)]
    for _ in range(rounds):
        for rank, count in enumerate(counts):
            for _ in range(count):
                one_step(models[rank], optimizers[rank], next(data[rank]))
        states = [m.state_dict() for m in models]
        for name, first in states[0].items():
            if first.is_floating_point():
                mean = sum(share * state[name] for share, state in zip(shares, states, strict=True))
                for state in states:
                    state[name].copy_(mean)
            else:
                for state in states:
                    state[name].copy_(first)
    return weights(models[0])


def trained(counts: list[int], rounds: int, model: nn.Module, **options) -> list[dict[str, Tensor]]:
    def body(run: Run) -> dict[str, Tensor]:
        mine = copy.deepcopy(model)
        optimizer = torch.optim.SGD(mine.parameters(), **STEP)
        run.prepare(mine, optimizer, plan=local_sgd(counts, **options))
        for batch in batches(run.rank, counts[run.rank] * rounds):
            one_step(mine, optimizer, batch)
        return weights(mine)

    return on_ranks(len(counts), body)


@pytest.mark.parametrize("counts", [[1, 1], [3, 1], [4, 2, 1], [2]])
@pytest.mark.parametrize("share", ["params", "delta"])
def test_rounds_average_parameters_and_statistics_and_leave_momentum(counts, share) -> None:
    model = make_model()
    expected = by_hand(counts, 3, [1 / len(counts)] * len(counts), model)
    found = trained(counts, 3, model, share=share)
    for each in found:
        assert_close(each, expected)
        assert_equal(each, found[0])


@pytest.mark.parametrize("mean", ["steps", "samples"])
def test_means_may_weigh_by_what_a_rank_did(mean) -> None:
    def body(run: Run) -> dict[str, Tensor]:
        mine = copy.deepcopy(model)
        optimizer = torch.optim.SGD(mine.parameters(), **STEP)
        run.prepare(mine, optimizer, plan=local_sgd([3, 1], mean=mean))
        for batch in batches(run.rank, [3, 1][run.rank] * 2):
            run.set_batch_weight([1.0, 6.0][run.rank])
            one_step(mine, optimizer, batch)
        return weights(mine)

    model = make_model()
    shares = [3 / 4, 1 / 4] if mean == "steps" else [3 / 9, 6 / 9]
    assert_close(on_ranks(2, body)[0], by_hand([3, 1], 2, shares, model))


class Numbered(TensorDataset):
    """Samples that carry their number."""

    def __init__(self, samples: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(samples, 4, generator=generator).double()
        super().__init__(torch.arange(samples), x, x.sum(1, keepdim=True))


def read_epochs(run: Run, loader, model, optimizer, epochs: int, *, note: bool = False) -> list[list[int]]:
    read: list[list[int]] = []
    for _ in range(epochs):
        read.append([])
        for which, x, y in loader:
            read[-1] += which.tolist()
            optimizer.zero_grad()
            losses = ((model(x) - y) ** 2).mean(1)
            if note:
                run.note_losses(losses)
            losses.mean().backward()
            optimizer.step()
    return read


@pytest.mark.parametrize("counts", [[5, 1], [3, 2, 1], [4, 4]])
def test_epochs_end_at_the_same_round_and_read_each_sample_at_most_once(counts) -> None:
    def body(run: Run):
        model = make_model(norm=False)
        optimizer = torch.optim.SGD(model.parameters(), **STEP)
        loader = DataLoader(Numbered(103), batch_size=4, shuffle=True)
        _, _, loader = run.prepare(model, optimizer, loader, plan=local_sgd(counts))
        length = len(loader)
        read = read_epochs(run, loader, model, optimizer, 2)
        return read, run.driver.rounds, weights(model), run.step, 2 * length

    found = on_ranks(len(counts), body)
    whole = 103 // (4 * sum(counts))
    assert {each[1] for each in found} == {2 * (whole + 1)}
    for epoch in range(2):
        read = [i for each in found for i in each[0][epoch]]
        assert len(read) == len(set(read))
        assert len(read) > 103 - 2 * len(counts)
    assert found[0][0][0] != found[0][0][1]
    for _, _, state, step, expected in found:
        assert_equal(state, found[0][2])
        assert step == expected


def test_ranks_that_end_in_different_rounds_hear_of_it() -> None:
    def body(run: Run) -> str:
        model = make_model(norm=False)
        optimizer = torch.optim.SGD(model.parameters(), **STEP)
        mine = batches(run.rank, [6, 3][run.rank])
        _, _, loader = run.prepare(model, optimizer, mine, plan=local_sgd([2, 2]))
        try:
            for batch in loader:
                one_step(model, optimizer, batch)
        except UnevenInputs as error:
            run._end(announce=False)
            return str(error)
        raise AssertionError("no rank noticed")

    for said in on_ranks(2, body):
        assert "rank 0 ends round 1 of its local steps; rank 1 has no batch left after 1 rounds" in said


def test_flush_gives_all_the_mean_in_the_middle_of_a_round() -> None:
    def body(run: Run):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), **STEP)
        run.prepare(model, optimizer, plan=local_sgd(10))
        for batch in batches(run.rank, 2 + run.rank):
            one_step(model, optimizer, batch)
        before = weights(model)
        run.flush()
        after = weights(model)
        run.flush()
        assert_equal(after, weights(model))
        return before, after

    found = on_ranks(2, body)
    for name, mean in found[0][1].items():
        if mean.is_floating_point():
            torch.testing.assert_close(mean, (found[0][0][name] + found[1][0][name]) / 2)
        assert torch.equal(mean, found[1][1][name])


def test_nan_in_a_ranks_weights_is_named_and_not_averaged() -> None:
    def body(run: Run):
        model = make_model(norm=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run.prepare(model, optimizer, plan=local_sgd(2))
        first, (x, y) = batches(run.rank, 2)
        one_step(model, optimizer, first)
        with pytest.raises(NotFinite) as caught:
            one_step(model, optimizer, (x * float("nan") if run.rank else x, y))
        run._end(announce=False)
        return str(caught.value), weights(model)

    found = on_ranks(2, body)
    assert all(
        "0.weight of rank 1 holds NaN or infinity after its local steps of round 0" in said for said, _ in found
    )
    assert all(torch.isfinite(t).all() for t in found[0][1].values())


def test_gradients_survive_an_exchange() -> None:
    def body(run: Run):
        model = make_model(norm=False)
        optimizer = torch.optim.SGD(model.parameters(), **STEP)
        run.prepare(model, optimizer, plan=local_sgd(1, share="delta"))
        x, y = batches(run.rank, 1)[0]
        ((model(x) - y) ** 2).mean().backward()
        before = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        return all(torch.equal(b, p.grad) for b, p in zip(before, model.parameters(), strict=True))

    assert on_ranks(2, body) == [True, True]
