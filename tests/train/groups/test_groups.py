"""Compute groups on thread ranks, beside synchronous training."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import nn

from omnizen.strategies.groups import groups
from omnizen.train.groups.driver import Groups
from omnizen.train.run import Run
from tests.train.helpers import assert_close, assert_equal, on_ranks, together, weights


class Net(nn.Module):
    """A table, layers of uneven sizes, a scalar, and a parameter that is never used."""

    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(200, 30, sparse=sparse)
        self.layers = nn.Sequential(nn.Linear(30, 700), nn.Tanh(), nn.Linear(700, 5))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(3))
        self.double()

    def forward(self, ids):
        return (self.layers(self.table(ids)) * self.scale).square().mean()


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch)


MAKERS = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.05),
    "two of a kind": lambda m: torch.optim.SGD(
        [
            {"params": [*m.table.parameters()], "lr": 0.5},
            {"params": [*m.layers.parameters(), m.scale], "momentum": 0.5},
        ],
        lr=0.1,
    ),
}


class Turns:
    """Lets ranks do something one after another, again and again: asynchronous training that is always the same."""

    def __init__(self, size: int) -> None:
        self.size, self.next, self.changed = size, 0, threading.Condition()

    def take(self, rank: int, work: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.next % self.size == rank, 10)
        work()
        with self.changed:
            self.next += 1
            self.changed.notify_all()


@pytest.mark.parametrize("kind", MAKERS)
def test_a_group_beside_a_waiting_one_equals_synchronous_training(kind: str) -> None:
    """Ranks 0 and 1 train in one group; rank 2, of another one, only serves its shard and flushes."""
    torch.manual_seed(0)
    model, make = Net(sparse=kind != "momentum"), MAKERS[kind]
    shares = [[torch.randint(200, (6, 4)) for _ in range(5)] for _ in range(2)]
    wanted = together(model, shares, loss, make, plan="dense")[0]

    def body(run: Run) -> dict[str, torch.Tensor]:
        mine = copy.deepcopy(model)
        optimizer = make(mine)
        run.prepare(mine, optimizer, plan=groups([[0, 1], [2]]))
        for batch in shares[run.rank] if run.rank < 2 else []:
            optimizer.zero_grad()
            loss(mine, batch).backward()
            optimizer.step()
        run.flush()
        assert set(run.staleness()) == {0} and not run.driver.notes
        return weights(mine)

    results = on_ranks(3, body)
    assert_close(results[0], wanted, 1e-12)
    assert_equal(results[0], results[1])
    assert_equal(results[0], results[2])


def test_one_group_is_plain_synchronous_training() -> None:
    torch.manual_seed(0)
    model = Net()
    shares = [[torch.randint(200, (6, 4)) for _ in range(3)] for _ in range(2)]
    plain, grouped = (together(model, shares, loss, plan=plan)[0] for plan in ("dense", groups(1, reducer="dense")))
    assert_equal(plain, grouped)


def test_equal_groups_are_one_version_old_for_each_other_group() -> None:
    model, turns, size, steps = nn.Linear(8, 2), Turns(4), 4, 6

    def body(run: Run) -> dict[int, int]:
        mine = copy.deepcopy(model)
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.01)
        run.prepare(mine, optimizer, plan=groups(size))
        assert isinstance(run.driver, Groups)
        for _ in range(steps):
            optimizer.zero_grad()
            mine(torch.ones(3, 8)).sum().backward()
            turns.take(run.rank, optimizer.step)
        run.flush()
        return run.staleness()

    for found in on_ranks(size, body):
        # the first contributions were all taken at version 0
        assert found == {0: 1, 1: 1, 2: 1, 3: 1 + size * (steps - 1)}
