"""Parameters, gradients and buffers of kinds that most models have not, against one process."""

from __future__ import annotations

import copy
from collections import UserDict
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from omnizen.train import auto
from omnizen.train.loader import CountingLoader, batch_samples
from omnizen.train.run import Run
from tests.train.helpers import alone, assert_close, assert_equal, on_ranks, sgd, together, weights

SCHEMES = ["dense", "agsparse", "sparcml", "zen-coo", "zen-bitmap"]
X = torch.randn(
    2, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
)  # rank, step, row, column
SHARES = [list(X[0]), list(X[1])]
UNION = [torch.cat(pair) for pair in zip(*SHARES, strict=True)]


class Odd(nn.Module):
    """A scalar, an empty parameter, complex ones (one used on rank 0 only) and a table of no columns; sparse ones "
    "of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scalar = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.empty = nn.Parameter(torch.empty(0, 5, dtype=torch.float64))
        self.phase = nn.Parameter(torch.arange(1, 6) * torch.tensor(0.1 + 0.2j, dtype=torch.complex128))
        self.gain = nn.Parameter(torch.tensor(1j, dtype=torch.complex128))
        self.table = nn.Embedding(5, 0, sparse=True, dtype=torch.float64)
        self.waves = nn.Parameter(torch.randn(9, 2, dtype=torch.complex128))

    def forward(self, x, use_gain: bool = True):
        ids = (x[:, 0] * 10).long().abs() % 5
        taken = self.waves.gather(0, ids[:, None].expand(-1, 2), sparse_grad=True)
        y = (x * self.phase).conj() * self.scalar * (self.gain if use_gain else 1)
        rows = taken.sum(1).abs() + self.table(ids).sum(1) + self.empty.sum()
        return y.abs() + rows[:, None]


@pytest.mark.parametrize("plan", SCHEMES)
def test_parameters_of_odd_shapes_and_types(plan: str) -> None:
    torch.manual_seed(0)
    model = Odd()
    expected = alone(model, UNION, lambda m, x: m(x).square().mean())
    for result in together(model, SHARES, lambda m, x: m(x).square().mean(), plan=plan):
        assert_close(result, expected)


def test_a_complex_parameter_that_one_rank_uses() -> None:
    torch.manual_seed(0)
    model = Odd()
    shares = [[(x, rank == 0) for x in SHARES[rank]] for rank in range(2)]
    results = together(model, shares, lambda m, batch: m(*batch).square().mean(), plan="dense")
    expected = alone(
        model,
        list(zip(*SHARES, strict=True)),
        lambda m, pair: (m(pair[0], True).square().mean() + m(pair[1], False).square().mean()) / 2,
    )
    assert_close(results[0], expected)
    assert_equal(*results)


def test_a_complex_parameter_is_planned_for(monkeypatch) -> None:
    monkeypatch.setattr(auto, "LINKS_BUDGET_S", 0.05)
    torch.manual_seed(0)
    model = Odd()
    shares = [share * 2 for share in SHARES]
    expected = alone(model, UNION * 2, lambda m, x: m(x).square().mean())
    for result in together(model, shares, lambda m, x: m(x).square().mean(), plan="auto"):
        assert_close(result, expected)


def test_a_sparse_gradient_without_an_embedding_is_sparse_on_all_ranks() -> None:
    """SparseAdam refuses a dense one, on the rank that did not use the table."""

    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.bias = nn.Parameter(torch.ones(5, 2)), nn.Parameter(torch.ones(2))

        def forward(self, ids):
            return nn.functional.embedding(ids, self.table, sparse=True).sum() + self.bias.sum()

    def body(run: Run):
        model = Raw()
        optimizers = [torch.optim.SparseAdam([model.table]), torch.optim.SGD([model.bias], 0.1)]
        run.prepare(model, optimizers, plan="dense")
        (model.bias.sum() if run.rank == 1 else model(torch.tensor([1, 3]))).backward()
        for optimizer in optimizers:
            optimizer.step()
        assert model.table.grad.is_sparse
        return weights(model)

    first, second, third = on_ranks(3, body)
    assert_equal(first, second)
    assert_equal(first, third)
    assert first["table"][1, 0] < 1 == first["table"][0, 0]


class Replaces(nn.Module):
    """Puts new tensors in the place of its buffers, as many modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 1, dtype=torch.float64)
        self.register_buffer("mean", torch.zeros(5, dtype=torch.float64))
        self.register_buffer("wave", torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.wave = self.wave + x.detach().mean() * 1j
        if x[0, 0] > 0:
            self.cache = torch.ones(3)
        return self.linear(x)


def test_buffers_that_are_replaced_follow_rank_0() -> None:
    torch.manual_seed(0)
    model = Replaces()
    shares = [[-X[0, 0].abs(), X[0, 1]], [X[1, 0].abs(), X[1, 1]]]
    results = together(model, shares, lambda m, x: m(x).square().mean())
    assert_equal(*results)
    expected = copy.deepcopy(model)
    for x in shares[0]:
        expected(x)
    torch.testing.assert_close(results[0]["mean"], expected.mean)
    torch.testing.assert_close(results[0]["wave"], expected.wave)


def test_samples_are_counted_in_batches_of_any_kind() -> None:
    @dataclass
    class Batch:
        name: str
        ids: torch.Tensor

    for batch in (UserDict(ids=torch.ones(3, 2)), Batch("a", torch.ones(3)), [("x", {"ids": torch.ones(3)})]):
        assert batch_samples(batch) == 3


def test_a_mean_over_a_batch_in_a_mapping_is_weighted() -> None:
    """A tokenizer's batch is a mapping, not a dict; all such batches once weighed the same."""
    whole = X[0, 0]
    parts = [whole[:3], whole[3:]]
    model = nn.Linear(5, 1, dtype=torch.float64)

    def body(run: Run):
        mine = copy.deepcopy(model)
        loader = run.prepare(mine, optimizer := sgd(mine), [UserDict(x=parts[run.rank])], plan="dense")[2]
        for batch in loader:
            mine(batch["x"]).square().mean().backward()
            optimizer.step()
        return weights(mine)

    for result in on_ranks(2, body):
        assert_close(result, alone(model, [whole], lambda m, x: m(x).square().mean()))


class Keys(nn.Module):
    """Buffers with more digits than float64 has, beside BatchNorm, which makes buffers travel in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5, dtype=torch.float64)
        self.register_buffer("key", torch.tensor([2**62 + 1, -(2**60) - 3, -(2**63), 2**63 - 1, -1]))
        self.register_buffer("wide", torch.tensor([2**63 - 1]).view(torch.uint64))
        self.register_buffer("mask", torch.tensor([float("-inf"), 0.0]))

    def forward(self, x):
        self.key += 1
        return self.norm(x)


def test_whole_numbers_keep_all_their_digits() -> None:
    """Buffers once travelled as float64, and 2**62 + 1 became 2**62 on all ranks."""
    model, loss = Keys(), lambda m, x: m(x).square().mean()
    results = together(model, SHARES, loss, plan="dense")
    expected = alone(model, SHARES[0], loss)
    for name in ("key", "wide", "mask"):
        assert [result[name].tolist() for result in results] == [expected[name].tolist()] * 2


def test_half_precision_is_clipped_by_a_norm_that_does_not_overflow() -> None:
    """The norm was once a float16, so infinite here, and all gradients became zero."""
    table = nn.ParameterDict({"low": nn.Parameter(torch.ones(70_000, dtype=torch.float16))})

    def body(run: Run):
        mine = copy.deepcopy(table)
        run.prepare(mine, sgd(mine), plan="dense")
        (mine["low"].float() * 300).sum().backward()
        return float(run.clip_grad_norm_(1000.0)), float(mine["low"].grad[0])

    norm = 300 * 70_000**0.5
    for found, grad in on_ranks(2, body):
        assert found == pytest.approx(norm, rel=1e-3)
        assert grad == pytest.approx(300 * 1000 / norm, rel=1e-3)  # half a digit of float16


def test_a_loader_that_was_left_as_it_is_can_be_copied() -> None:
    kept = CountingLoader([torch.ones(3, 2)], lambda _: None, lambda: None)
    assert len(copy.copy(kept).inner) == 1
