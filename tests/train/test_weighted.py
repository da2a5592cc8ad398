"""Per-shard step sizes, beside the published rule written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from omnizen.errors import UserError
from omnizen.strategies import Strategy, per_shard_steps
from omnizen.train.run import Run
from tests.train.helpers import on_ranks

SHARDS = [
    (torch.tensor([[1.0, 0.5], [0.3, -1.0]]).double(), torch.tensor([[1.0], [0.0]]).double()),
    (torch.tensor([[3.0, 1.0], [-2.0, 2.0]]).double(), torch.tensor([[0.5], [2.0]]).double()),
]
L = [2.0, 14.0]


def by_hand(steps: int, switch_at: int | None, eps: float = 0.0) -> tuple[torch.Tensor, int]:
    """``x <- x - mean_i(alpha_i g_i)``; after the switch ``alpha = mean of 1/L`` for all."""
    x, common, switched = torch.zeros(2, 1).double(), sum(1 / each for each in L) / 2, steps
    for step in range(steps):
        grads = [2 * (a.T @ (a @ x - y)) / len(a) for a, y in SHARDS]
        alphas = [1 / each for each in L] if switched == steps else [common] * 2
        move = sum(alpha * g for alpha, g in zip(alphas, grads, strict=True)) / 2
        x = x - move
        if switched == steps and (step + 1 == switch_at or float((move / common).norm()) <= eps):
            switched = step + 1
    return x, switched


def train(strategy: Strategy, steps: int, *, save_at: int | None = None, folder=None):
    def body(run: Run):
        model = nn.Linear(2, 1, bias=False).double()
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=sum(1 / each for each in L) / 2)
        run.prepare(model, optimizer, plan=strategy)
        a, y = SHARDS[run.rank]
        if folder is not None and save_at is None:
            run.load(folder)
        while run.step < steps:
            if run.step == save_at:
                run.save(folder)
            optimizer.zero_grad()
            ((model(a) - y) ** 2).mean().backward()
            optimizer.step()
        return model.weight.detach().T, run.driver.switched

    return on_ranks(2, body)


def test_weighted_steps_equal_the_published_rule_until_and_after_the_switch() -> None:
    for until in ({"until_step": 3}, {"until_norm": 2.0}, {}):
        expected, switched = by_hand(8, until.get("until_step"), until.get("until_norm", 0.0))
        assert (switched < 8) == bool(until)
        for found, has in train(per_shard_steps(L, **until), 8):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
            assert has == bool(until)


def test_the_switch_is_part_of_a_checkpoint(tmp_path) -> None:
    strategy = per_shard_steps(L, until_step=3)
    straight = train(strategy, 8, save_at=5, folder=tmp_path / "here")
    resumed = train(strategy, 8, folder=tmp_path / "here")
    assert all(torch.equal(a[0], b[0]) and b[1] for a, b in zip(straight, resumed, strict=True))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"smoothness": []}, "got none"),
        ({"smoothness": [1.0, 0.0]}, "numbers above 0"),
        ({"smoothness": [1.0, float("nan")]}, "numbers above 0"),
        ({"smoothness": [1.0, 2.0], "until_norm": -1.0}, "until_norm: a number of 0 or more"),
        ({"smoothness": [1.0, 2.0], "until_step": 1.5}, "until_step: a whole number"),
    ],
)
def test_bad_numbers_are_refused(options, said) -> None:
    with pytest.raises(UserError, match=said):
        per_shard_steps(**options)


def test_weights_that_fit_no_rank_are_refused() -> None:
    def body(run: Run) -> None:
        model = nn.Linear(2, 1)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), plan=per_shard_steps([1.0, 2.0, 3.0]))

    with pytest.raises(UserError, match="smoothness of 3 shards, and there are 2 ranks"):
        on_ranks(2, body)
