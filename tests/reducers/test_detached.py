"""Detached error feedback on a noisy quadratic: it bears step sizes at which ordinary feedback diverges."""

import math

import pytest
import torch

from omnizen import catalog
from omnizen.comm.threads import run_ranks
from omnizen.reducers.feedback import RESIDUAL
from omnizen.types import Dense, Step

DIM, RANKS, STEPS = 512, 4, 400


def last_loss(ahead, lr):
    """Condition number 100, block of 1/64, momentum 0.9; returns the loss at the end, or infinity."""
    curvature = torch.logspace(-2, 0, DIM)
    reducer = catalog.reducer("def-random-block", density=1 / 64, momentum=0.9, detached=ahead)

    def body(comm):
        noise = torch.Generator().manual_seed(comm.rank)
        x = torch.ones(DIM)
        state = reducer.init(Dense(x))
        for n in range(STEPS):
            y = x - ahead * lr * state.slots[RESIDUAL]
            grad = curvature * y + 0.1 * torch.randn(DIM, generator=noise)
            done = reducer.start(Dense(grad), state, comm, Step(n, 1, "x")).wait()
            state = done.state
            x = x - lr * done.value.to_dense().view(-1)
            if not torch.isfinite(x).all() or x.abs().max() > 1e4:  # alike on all ranks
                return math.inf
        return float(0.5 * (curvature * x * x).sum())

    return run_ranks(RANKS, body, timeout_s=30)[0]


@pytest.mark.parametrize(("ahead", "lr"), [(0.5, 0.005), (1.0, 0.02)])
def test_detached_feedback_is_stable_where_ordinary_feedback_is_not(ahead, lr):
    first = 0.5 * float(torch.logspace(-2, 0, DIM).sum())
    assert last_loss(0.0, lr) > first
    assert last_loss(ahead, lr) < 0.2 * first


def test_below_the_limit_it_changes_little():
    plain, ahead = last_loss(0.0, 0.0005), last_loss(0.3, 0.0005)
    assert ahead == pytest.approx(plain, rel=0.1)
