"""Training loops that go wrong, or that look as if they did."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from omnizen.comm.torch_pg import thread_gloo_ranks
from omnizen.errors import OmnizenError, PeerLost, PeerTimeout, UserError
from omnizen.train.run import Run
from tests.train.helpers import alone, assert_close, make_run, on_ranks, run_ranks, sgd, weights

MODEL = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).double()
ONE = nn.Linear(3, 1, bias=False).double()
X = torch.randn(
    2, 4, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
)  # rank, step, row, column
UNION = [torch.cat(pair) for pair in zip(*X, strict=True)]


def loss(model, x):
    return model(x).square().sum()


def prepared(run: Run, model=MODEL, **options):
    mine = copy.deepcopy(model)
    return mine, run.prepare(mine, sgd(mine), plan="dense", **options)[1]


@pytest.mark.parametrize("model", [MODEL, ONE])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_sums_may_be_zeroed_in_either_way_and_a_step_left_out(model, set_to_none: bool) -> None:
    """As a gradient scaler does after an overflow; with micro-batches in the last step."""

    def body(run: Run):
        mine, optimizer = prepared(run, model, reduction="sum")
        for step in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            loss(mine, X[run.rank, step]).backward()
            if step != 1:
                optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        with run.no_sync():
            loss(mine, X[run.rank, 3, :1]).backward()
        loss(mine, X[run.rank, 3, 1:]).backward()
        optimizer.step()
        return weights(mine)

    expected = alone(model, [UNION[i] for i in (0, 2, 3)], loss)
    for result in on_ranks(2, body):
        assert_close(result, expected)


@pytest.mark.parametrize("model", [MODEL, ONE, nn.EmbeddingBag(5, 1, sparse=True)])
@pytest.mark.parametrize("paused", [True, False])
def test_sums_that_are_never_zeroed_are_refused(model, paused: bool) -> None:
    """One process would add up gradients from step to step; sums would be summed again."""

    def work(comm) -> None:
        run = make_run(comm)
        mine, optimizer = prepared(run, model, reduction="sum")
        x = torch.tensor([[1, 3]]) if isinstance(model, nn.EmbeddingBag) else X[0, 0]
        loss(mine, x).backward()
        optimizer.step()
        with (
            run.no_sync() if paused else nullcontext(),
            pytest.raises(UserError, match=r"weight.grad was already summed.*zero all gradients"),
        ):
            loss(mine, x).backward()

    run_ranks(2, work)


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("broke")


@pytest.mark.parametrize("how", ["close", "with"])
def test_a_backward_that_breaks_off_on_one_rank(how: str) -> None:
    """The others hear at once, long before the time limit; the rank itself cannot step by mistake."""

    def work(comm) -> str:
        run = make_run(comm)
        model, optimizer = prepared(run)
        if run.rank == 0:
            with pytest.raises(PeerLost) as found:
                loss(model, X[0, 0]).backward()
            assert not isinstance(found.value, PeerTimeout)
            return str(found.value)

        def steps() -> int:
            with pytest.raises(RuntimeError, match="broke"):
                model[1](Breaks.apply(model[0](X[1, 0]))).sum().backward()
            with pytest.raises(OmnizenError, match="stopped with an error"):
                optimizer.step()
            return 0

        if how == "close":
            steps()
            run.close()
        else:
            with pytest.raises(ZeroDivisionError), run:
                1 / steps()
        return ""

    said, _ = thread_gloo_ranks(2, work, timeout_s=30)
    assert "rank 0 lost rank 1 at step 0" in said
