"""Compute groups on thread ranks, beside synchronous training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from omnizen.errors import UserError
from omnizen.strategies.groups import groups
from omnizen.train.groups.driver import Groups
from omnizen.train.run import Run
from tests.train.groups.turns import Turns
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
    "adam": lambda m: torch.optim.AdamW(m.parameters(), lr=0.05),
    "two of a kind": lambda m: torch.optim.SGD(
        [
            {"params": [*m.table.parameters()], "lr": 0.5},
            {"params": [*m.layers.parameters(), m.scale], "momentum": 0.5},
        ],
        lr=0.1,
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_group_beside_a_waiting_one_equals_synchronous_training(kind: str) -> None:
    """Ranks 0 and 1 train in one group; rank 2, of another one, only serves its shard and flushes."""
    torch.manual_seed(0)
    model, make = Net(sparse=kind not in ("momentum", "adam")), MAKERS[kind]
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
        assert set(run.staleness()) == {0}
        assert not run.driver.notes
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
    size, steps = 4, 6
    model, turns = nn.Linear(8, 2), Turns(list(range(size)) * steps)

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


def quadratic(run: Run, turns: Turns, steps: int, strategy: Any, start: float) -> nn.Module:
    """Minimise a sum of squares; the gradient is the weight itself."""
    model = nn.Linear(40, 600, bias=False)
    nn.init.constant_(model.weight, start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.prepare(model, optimizer, plan=strategy)
    for _ in range(steps):
        optimizer.zero_grad()
        model.weight.square().sum().div(2).backward()
        turns.take(run.rank, optimizer.step)
    return model


def test_settings_reach_the_servers_and_momentum_may_be_negative() -> None:
    turns, steps, lr, momentum = Turns([0, 1] * 5), 5, 0.2, -0.4

    def body(run: Run) -> float:
        model = quadratic(run, turns, 0, groups(2), 1.0)
        run.set_hyper(lr=lr, momentum=momentum)
        (optimizer,) = run.optimizers
        for _ in range(steps):
            optimizer.zero_grad()
            model.weight.square().sum().div(2).backward()
            turns.take(run.rank, optimizer.step)
        run.flush()
        assert model.weight.min() == model.weight.max()
        with pytest.raises(UserError, match="momentum: a number in"):
            run.set_hyper(momentum=1.0)
        return float(model.weight.detach()[0, 0])

    # by hand: each rank's gradient is the weight that it got after its own contribution before
    weight, buffer, seen = 1.0, 0.0, [1.0, 1.0]
    for turn in range(2 * steps):
        buffer = momentum * buffer + seen[turn % 2]
        weight -= lr * buffer
        seen[turn % 2] = weight
    assert on_ranks(2, body) == pytest.approx([weight, weight], rel=1e-5)


def test_stale_gradients_still_find_the_minimum() -> None:
    turns = Turns([0, 1, 2, 0, 0, 2, 1] * 15)
    steps = {0: 45, 1: 30, 2: 30}

    def body(run: Run) -> float:
        model = quadratic(run, turns, steps[run.rank], groups(3), 3.0)
        run.flush()
        assert sum(run.staleness().values()) == 105  # the model is one shard
        return float(model.weight.detach().abs().max())

    assert max(on_ranks(3, body)) < 1e-3


class Normalised(nn.Module):
    """A layer with BatchNorm, whose statistics are each group's own between two flushes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    def forward(self, x):
        return self.layers(x).square().mean()


def test_batchnorm_statistics_are_averaged_over_groups_at_a_flush() -> None:
    torch.manual_seed(0)
    model, turns = Normalised(), Turns([0, 1] * 2)

    def body(run: Run) -> Any:
        mine = copy.deepcopy(model)
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
        run.prepare(mine, optimizer, plan=groups(2))
        for _ in range(2):
            optimizer.zero_grad()
            mine(torch.arange(12.0).view(4, 3) * (1 + run.rank)).backward()
            turns.take(run.rank, optimizer.step)
        before = mine.layers[1].running_mean.clone()
        run.flush()
        return before, weights(mine)

    (mine, after), (theirs, same) = on_ranks(2, body)
    assert not torch.equal(mine, theirs)
    assert_equal(after, same)
    torch.testing.assert_close(after["layers.1.running_mean"], (mine + theirs) / 2)
    assert after["layers.1.num_batches_tracked"] == 2


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (lambda: groups(5), "5 groups need as many ranks"),
        (lambda: groups([[0], [2]]), "each of the ranks 0..1 is in one group"),
        (lambda: groups([[0, 1], [1]]), "each once"),
        (lambda: groups(0), "a number of 1 or more"),
        (lambda: groups([[0], []]), "each once"),
    ],
)
def test_groups_that_cannot_be_are_refused(strategy: Any, said: str) -> None:
    def body(run: Run) -> None:
        model = nn.Linear(2, 2)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), plan=strategy())

    with pytest.raises(UserError, match=said):
        on_ranks(2, body)


def test_an_optimizer_that_looks_at_whole_tensors_is_refused() -> None:
    def body(run: Run) -> None:
        model = nn.Linear(2, 2)
        run.prepare(model, torch.optim.LBFGS(model.parameters()), plan=groups(2))

    with pytest.raises(UserError, match="LBFGS is not known to"):
        on_ranks(2, body)
