"""Unequal batches and unequal numbers of steps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from omnizen.errors import PeerLost, UnevenInputs, UserError
from omnizen.train.run import Run
from tests.train.helpers import (
    alone,
    assert_close,
    assert_equal,
    make_run,
    on_ranks,
    run_ranks,
    sgd,
    together,
    weights,
)


def model_and_data(rows: int = 12):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return model, torch.randn(rows, 5, dtype=torch.float64), torch.randn(rows, 1, dtype=torch.float64)


def mse(m, batch):
    return nn.functional.mse_loss(m(batch[0]), batch[1])


def sse(m, batch):
    return nn.functional.mse_loss(m(batch[0]), batch[1], reduction="sum")


@pytest.mark.parametrize("cut", [9, 12])
@pytest.mark.parametrize(("loss", "reduction"), [(mse, "mean"), (sse, "sum")])
def test_unequal_batches_weigh_by_their_samples(cut: int, loss, reduction: str) -> None:
    """9 and 3 rows; 12 and 0 rows, where the mean of nothing is NaN and must count as nothing."""
    model, x, y = model_and_data()
    shares = [[(x[:cut], y[:cut])], [(x[cut:], y[cut:])]]
    rows = [[cut], [12 - cut]]
    results = together(model, shares, loss, batch_weights=rows, reduction=reduction)
    assert_equal(*results)
    assert_close(results[0], alone(model, [(x, y)], loss))


def test_token_weighted_losses() -> None:
    """Each rank's loss is a mean over the tokens that are not padding."""
    torch.manual_seed(0)
    model = nn.Embedding(11, 11, sparse=True, dtype=torch.float64)
    tokens = torch.randint(1, 11, (4, 6))
    tokens[1, 2:] = tokens[3, 1:] = 0

    def loss(m, t):
        return nn.functional.cross_entropy(m(t).flatten(0, 1), t.flatten(), ignore_index=0)

    shares = [[tokens[:2]], [tokens[2:]]]
    counts = [[int((share[0] != 0).sum())] for share in shares]
    for result in together(model, shares, loss, batch_weights=counts):
        assert_close(result, alone(model, [tokens], loss))


def test_equal_batches_are_bit_identical_to_unweighted() -> None:
    model, x, y = model_and_data()
    shares = [[(x[:6], y[:6])], [(x[6:], y[6:])]]
    weighted = together(model, shares, mse, batch_weights=[[3.7], [3.7]])
    assert_equal(weighted[0], together(model, shares, mse)[0])


def test_sum_refuses_to_sum_twice() -> None:
    model, x, y = model_and_data()

    def body(run: Run) -> str:
        mine = copy.deepcopy(model)
        run.prepare(mine, sgd(mine), plan="dense", reduction="sum")
        sse(mine, (x, y)).backward()
        with pytest.raises(UserError, match=r"no_sync") as found:
            sse(mine, (x, y)).backward()
        return str(found.value)

    assert "0.weight.grad" in on_ranks(2, body)[0] or "2.weight.grad" in on_ranks(2, body)[0]


def test_negative_weight_is_refused() -> None:
    run = make_run(run_ranks(1, lambda comm: comm)[0])
    with pytest.raises(UserError, match="got -1"):
        run.set_batch_weight(-1)


class Stream(IterableDataset):
    """A stream that each rank reads its own part of."""

    def __init__(self, rows) -> None:
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def test_batches_of_any_loader_are_counted() -> None:
    model, x, y = model_and_data()
    parts = [slice(0, 9), slice(9, 12)]

    def body(run: Run):
        mine = copy.deepcopy(model)
        part = parts[run.rank]
        stream = DataLoader(Stream(list(zip(x[part], y[part], strict=True))), batch_size=9)
        _, optimizer, loader = run.prepare(mine, sgd(mine), stream, plan="dense")
        for batch in loader:
            mse(mine, batch).backward()
            optimizer.step()
        return weights(mine)

    for result in on_ranks(2, body):
        assert_close(result, alone(model, [(x, y)], mse))


def test_a_loader_that_ends_early_is_an_error_on_all_ranks() -> None:
    model, x, y = model_and_data()

    def body(run: Run) -> str:
        mine = copy.deepcopy(model)
        rows = list(zip(x, y, strict=True))[: 6 if run.rank else 4]
        _, optimizer, loader = run.prepare(mine, sgd(mine), DataLoader(Stream(rows), batch_size=2), plan="dense")
        for batch in loader:
            mse(mine, batch).backward()
            optimizer.step()
        return "no error"

    def work(comm):
        with pytest.raises(UnevenInputs) as found:
            body(make_run(comm))
        return str(found.value)

    for said in run_ranks(2, work):
        assert "rank 0 has no batch left after 2 steps" in said
        assert "rank 1 takes step 2" in said


def test_one_rank_takes_a_step_more() -> None:
    """Case 50, with ranks that close."""
    model, x, y = model_and_data()

    def work(comm) -> str:
        run, mine = make_run(comm), copy.deepcopy(model)
        _, optimizer, _ = run.prepare(mine, sgd(mine), plan="dense")

        def steps() -> None:
            for _ in range(2 + comm.rank):
                mse(mine, (x, y)).backward()
                optimizer.step()
            run.close()

        with pytest.raises(UnevenInputs) as found:
            steps()
        if comm.rank:
            with pytest.raises(UnevenInputs):  # later calls say the same
                steps()
        return str(found.value)

    for said in run_ranks(2, work):
        assert "rank 0 closed its run after 2 steps" in said
        assert "rank 1 takes step 2" in said


def test_one_rank_ends_without_a_word() -> None:
    """Case 50, with a rank that just stops: within the limit, naming rank and step."""
    model, x, y = model_and_data()

    def work(comm):
        run, mine = make_run(comm), copy.deepcopy(model)
        _, optimizer, _ = run.prepare(mine, sgd(mine), plan="dense")
        for _ in range(2):
            mse(mine, (x, y)).backward()
            optimizer.step()
        if comm.rank == 0:
            return None
        with pytest.raises(PeerLost) as found:
            mse(mine, (x, y)).backward()
        return found.value

    lost = run_ranks(2, work)[1]
    assert (lost.rank, lost.peer, lost.step) == (1, 0, 2)


def test_a_rank_that_skips_a_backward_is_noticed() -> None:
    model, x, y = model_and_data()

    def work(comm) -> str:
        run, mine = make_run(comm), copy.deepcopy(model)
        _, optimizer, _ = run.prepare(mine, sgd(mine), plan="dense")

        def steps() -> None:
            for step in range(3):
                if comm.rank == 0 or step != 1:
                    mse(mine, (x, y)).backward()
                optimizer.step()

        with pytest.raises(UnevenInputs) as found:
            steps()
        return str(found.value)

    said = run_ranks(2, work)
    assert "rank 0 takes step 1; rank 1 takes step 2" in said[0]


def test_uneven_data_is_dealt_out_without_padding_or_hang() -> None:
    """Case 33: 7 samples, 2 ranks, batch 2; each sample once, and the result of one process."""
    model, x, y = model_and_data(7)

    def body(run: Run):
        mine = copy.deepcopy(model)
        loader = DataLoader(TensorDataset(torch.arange(7), x, y), batch_size=2)
        _, optimizer, loader = run.prepare(mine, sgd(mine), loader, plan="dense")
        seen = []
        for i, a, b in loader:
            seen.append(i.tolist())
            optimizer.zero_grad()
            mse(mine, (a, b)).backward()
            optimizer.step()
        return seen, weights(mine)

    (seen0, first), (seen1, second) = on_ranks(2, body)
    assert (seen0, seen1) == ([[0, 1], [4, 5]], [[2, 3], [6]])
    assert_equal(first, second)
    assert_close(first, alone(model, [(x[:4], y[:4]), (x[4:], y[4:])], mse))
