"""Thread ranks that train a model, beside one process on the union batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from omnizen.comm.threads import run_ranks
from omnizen.train.run import Run

Batch = Any


def make_run(comm: Any, **options: Any) -> Run:
    return Run(comm, comm.sub(range(comm.size), "control"), **options)


def on_ranks(size: int, body: Callable[[Run], Any], *, timeout_s: float = 30.0, **options: Any) -> list[Any]:
    """Run ``body(run)`` on thread ranks, each with a run of its own that is closed afterwards."""

    def work(comm: Any) -> Any:
        run = make_run(comm, **options)
        result = body(run)
        run.close()
        return result

    return run_ranks(size, work, timeout_s=timeout_s)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def assert_close(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 1e-9) -> None:
    """Summation order is all that may differ; in float64 that is far below 1e-9."""
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(
            a[name], b[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


Loss = Callable[[nn.Module, Batch], Tensor]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def alone(model: nn.Module, batches: Sequence[Batch], loss: Loss, make: MakeOptimizer = sgd) -> dict[str, Tensor]:
    """Train a copy in one process and return its weights."""
    model = copy.deepcopy(model)
    optimizer = make(model)
    for batch in batches:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    return weights(model)


def together(
    model: nn.Module,
    shares: Sequence[Sequence[Batch]],
    loss: Loss,
    make: MakeOptimizer = sgd,
    *,
    batch_weights: Sequence[Sequence[float]] | None = None,
    plan: Any = "zen-coo",
    reduction: Any = "mean",
) -> list[dict[str, Tensor]]:
    """Train copies on one rank for each of ``shares`` (``shares[rank][step]``) and return their weights."""

    def body(run: Run) -> dict[str, Tensor]:
        mine = copy.deepcopy(model)
        optimizer = make(mine)
        run.prepare(mine, optimizer, plan=plan, reduction=reduction)
        for step, batch in enumerate(shares[run.rank]):
            optimizer.zero_grad()
            if batch_weights is not None:
                run.set_batch_weight(batch_weights[run.rank][step])
            loss(mine, batch).backward()
            optimizer.step()
        return weights(mine)

    return on_ranks(len(shares), body)
