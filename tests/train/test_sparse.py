"""Sparse gradients: inputs that failed elsewhere, against one process on the union batch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import omnizen
from omnizen.strategies.sync import sync
from omnizen.train.run import Run
from tests.train.helpers import alone, assert_close, assert_equal, on_ranks, together, weights

SCHEMES = [
    "dense", "agsparse", sync("zen-coo"), "sparcml-split-dense", "omnireduce", "omnireduce-streaming",
    "parameter-server",
]  # fmt: skip


class TwoTables(nn.Module):
    """Case 1: each rank looks into another table."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Embedding(10, 32, sparse=True, dtype=torch.float64)
        self.b = nn.Embedding(10, 32, sparse=True, dtype=torch.float64)

    def forward(self, batch):
        use_a, ids = batch
        return (self.a if use_a else self.b)(ids).square().sum()


@pytest.mark.parametrize("plan", SCHEMES)
def test_ranks_that_use_different_tables(plan) -> None:
    torch.manual_seed(0)
    model = TwoTables()
    ids = [torch.randint(10, (4,)) for _ in range(3)]
    shares = [[(True, i) for i in ids], [(False, i) for i in ids]]
    first, second = together(model, shares, lambda m, b: m(b), plan=plan)
    assert_equal(first, second)

    def both(m, ids):
        return (m((True, ids)) + m((False, ids))) / 2

    assert_close(first, alone(model, ids, both))


@pytest.mark.parametrize("plan", SCHEMES)
@pytest.mark.parametrize("sparse", [True, False])
def test_a_rank_whose_batch_is_all_padding(plan, sparse) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(7, 3, padding_idx=0, sparse=sparse, dtype=torch.float64)
    shares = [[torch.zeros(2, dtype=torch.long)], [torch.tensor([3, 3])]]
    results = together(model, shares, lambda m, ids: m(ids).sum(1).square().mean(), plan=plan)
    union = alone(model, [torch.tensor([0, 0, 3, 3])], lambda m, ids: m(ids).sum(1).square().mean())
    for result in results:
        assert_close(result, union)


@pytest.mark.parametrize("plan", SCHEMES)
def test_width_one_on_three_ranks_and_all_empty(plan) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(5, 1, padding_idx=0, sparse=True, dtype=torch.float64)
    padding = torch.zeros(2, dtype=torch.long)
    shares = [[torch.tensor([1, 2]), padding], [torch.tensor([2, 0]), padding], [torch.tensor([4, 4]), padding]]
    results = together(model, shares, lambda m, ids: m(ids).square().mean(), plan=plan)
    union = [torch.cat([share[step] for share in shares]) for step in range(2)]
    for result in results:
        assert_close(result, alone(model, union, lambda m, ids: m(ids).square().mean()))


class Mixed(nn.Module):
    """A sparse table and a linear layer."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 4, sparse=sparse, dtype=torch.float64)
        self.linear = nn.Linear(4, 2, dtype=torch.float64)

    def forward(self, ids):
        return self.linear(self.table(ids)).square().mean()


def test_clipping_takes_the_norm_of_the_averaged_gradient() -> None:
    """Case 4: duplicates are summed before the norm is taken."""
    torch.manual_seed(0)
    model = Mixed()
    shares = [torch.tensor([1, 1, 2, 5]), torch.tensor([1, 7, 7, 7])]
    dense = Mixed(sparse=False)
    dense.load_state_dict(model.state_dict())
    dense(torch.cat(shares)).backward()
    expected = torch.nn.utils.clip_grad_norm_(dense.parameters(), 0.1)

    def body(run: Run):
        mine = copy.deepcopy(model)
        run.prepare(mine, torch.optim.SGD(mine.parameters(), 0.1), plan="zen-coo")
        mine(shares[run.rank]).backward()
        assert mine.table.weight.grad.is_sparse
        return run.clip_grad_norm_(0.1), [p.grad.to_dense() for p in mine.parameters()]

    for norm, grads in on_ranks(2, body):
        torch.testing.assert_close(norm, expected, rtol=1e-6, atol=0)
        for grad, param in zip(grads, dense.parameters(), strict=True):
            torch.testing.assert_close(grad, param.grad, rtol=1e-6, atol=1e-12)


def test_clipping_alone_sums_duplicates_first() -> None:
    model = Mixed()
    model(torch.tensor([1, 1, 1, 2])).backward()
    dense = torch.cat([p.grad.to_dense().flatten() for p in model.parameters()])
    torch.testing.assert_close(omnizen.train.clip.clip_grad_norm_(model.parameters(), 0.1), dense.norm())


@pytest.mark.parametrize("plan", SCHEMES)
def test_embedding_bag_with_other_ids_on_each_rank(plan) -> None:
    """Case 7: equal to the bit on all ranks, and not what a rank alone would have."""
    torch.manual_seed(0)
    model = nn.EmbeddingBag(30, 5, sparse=True, mode="sum", dtype=torch.float64)
    shares = [[torch.randint(30, (4, 3)) for _ in range(5)] for _ in range(2)]

    def loss(m, ids):
        return m(ids).square().mean()

    first, second = together(model, shares, loss, plan=plan)
    assert_equal(first, second)
    assert not torch.equal(first["weight"], alone(model, shares[0], loss)["weight"])
    assert_close(first, alone(model, [torch.cat(pair) for pair in zip(*shares, strict=True)], loss))


def test_duplicates_are_summed_before_they_are_sent() -> None:
    """Case 11: 512 ids of 5 values travel as 5 rows."""
    seen = []

    class Counting:
        def __init__(self, comm):
            self.comm = comm

        def __getattr__(self, name):
            return getattr(self.comm, name)

        def all_gather(self, parts):
            if len(parts) == 2:
                seen.append([len(p) for p in parts])
            return self.comm.all_gather(parts)

    def body(run: Run) -> None:
        model = nn.Embedding(1000, 8, sparse=True)
        run.gradients = Counting(run.gradients)
        run.prepare(model, torch.optim.SGD(model.parameters(), 0.1), plan="agsparse")
        model(torch.randint(5, (512,))).sum().backward()

    on_ranks(2, body)
    assert seen == [[5, 5], [5, 5]]


def test_a_dense_table_planned_by_rows_equals_one_process() -> None:
    torch.manual_seed(0)
    model = Mixed(sparse=False)
    shares = [[torch.randint(20, (3,)) for _ in range(4)] for _ in range(3)]

    def adam(m):
        return torch.optim.Adam(m.parameters(), lr=0.01)

    results = together(model, shares, lambda m, b: m(b), adam, plan="zen-coo")
    union = alone(model, [torch.cat(step) for step in zip(*shares, strict=True)], lambda m, b: m(b), adam)
    for result in results:
        assert_close(result, union)


def test_a_gradient_that_is_sparse_without_an_embedding_module() -> None:
    """A functional lookup in a bare parameter is not known as a table; it travels dense and stays sparse."""

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(9, 2, dtype=torch.float64))

        def forward(self, ids):
            return nn.functional.embedding(ids, self.table, sparse=True).square().mean()

    torch.manual_seed(0)
    model = Bare()
    shares = [[torch.tensor([1, 1])], [torch.tensor([1, 8])]]
    for result in together(model, shares, lambda m, b: m(b)):
        assert_close(result, alone(model, [torch.tensor([1, 1, 1, 8])], lambda m, b: m(b)))


def test_weights_are_untouched_by_keys() -> None:
    def body(run: Run):
        model = Mixed()
        before = list(weights(model))
        prepared, _, _ = run.prepare(model, torch.optim.SGD(model.parameters(), 0.1), plan="dense")
        assert prepared is model
        return before == list(weights(model))

    assert all(on_ranks(2, body))


@pytest.mark.parametrize("plan", SCHEMES)
def test_a_second_backward_is_added_to_the_average(plan) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(9, 3, sparse=True, dtype=torch.float64)
    ids = [torch.tensor([1, 2]), torch.tensor([2, 7])]

    def twice(run: Run):
        mine = copy.deepcopy(model)
        run.prepare(mine, torch.optim.SGD(mine.parameters(), lr=0.1), plan=plan)
        for _ in range(2):
            mine(ids[run.rank]).square().sum().backward()
        return {"grad": mine.weight.grad.to_dense()}

    mine = copy.deepcopy(model)
    sum(mine(i).square().sum() for i in ids).backward()
    for result in on_ranks(2, twice):
        assert_close(result, {"grad": mine.weight.grad.to_dense()})
