"""A loss that is no number: who and which batch is said before weights change, and good checkpoints stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen.errors import NotFinite
from omnizen.strategies.groups import groups
from omnizen.train.run import Run
from tests.train.helpers import assert_equal, make_run, on_ranks, run_ranks, weights

DATA = TensorDataset(torch.arange(12.0).view(-1, 1))


def model() -> nn.Module:
    made = nn.Linear(1, 1)
    nn.init.constant_(made.weight, 0.1)
    nn.init.constant_(made.bias, 0.2)
    return made


def prepared(run: Run, plan: Any, lr: float = 1e-3) -> Any:
    mine = model()
    loader = DataLoader(DATA, batch_size=2)
    return run.prepare(mine, torch.optim.SGD(mine.parameters(), lr=lr), loader, plan=plan)


@pytest.mark.parametrize("size", [1, 2])
def test_names_rank_step_and_batch_and_changes_nothing(size: int) -> None:
    def body(comm: Any) -> None:
        run = make_run(comm)
        mine, optimizer, loader = prepared(run, "dense")
        for step, (x,) in enumerate(loader):
            optimizer.zero_grad()
            before = weights(mine)
            odd = float("nan") if (step, run.rank) == (1, size - 1) else 1.0
            (mine(x) * odd).square().mean().backward()
            if step == 1:
                break
            optimizer.step()
        with pytest.raises(NotFinite, match=rf"of rank {size - 1} .* at step 1, in batch 1 of epoch 0; no weight"):
            optimizer.step()
        assert_equal(weights(mine), before)
        run._end(announce=False)

    run_ranks(size, body)


def test_what_the_loop_has_mended_is_taken() -> None:
    def body(run: Run) -> dict[str, torch.Tensor]:
        mine, optimizer, loader = prepared(run, "dense")
        (x,) = next(iter(loader))
        (mine(x) * (float("inf") if run.rank else 1.0)).square().mean().backward()
        for param in mine.parameters():
            param.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimizer.step()
        return weights(mine)

    first, second = on_ranks(2, body)
    assert_equal(first, second)


def test_a_group_with_an_odd_loss_contributes_nothing_and_the_others_train_on() -> None:
    def body(comm: Any) -> Any:
        run = make_run(comm)
        mine = model()
        optimizer = torch.optim.SGD(mine.parameters(), lr=1e-3)
        run.prepare(mine, optimizer, plan=groups(2))
        x = torch.ones(2, 1) * (float("nan") if run.rank else 1.0)
        for _ in range(3):
            optimizer.zero_grad()
            mine(x).square().mean().backward()
            if run.rank == 1:
                with pytest.raises(NotFinite, match="of rank 1 holds"):
                    optimizer.step()
                run._end(announce=False)
                return None
            optimizer.step()
        run.flush()
        run.close()
        return weights(mine)

    found = run_ranks(2, body)[0]
    assert all(bool(value.isfinite().all()) for value in found.values())


def test_weights_that_are_no_numbers_do_not_replace_a_checkpoint(tmp_path: Path) -> None:
    def body(run: Run) -> None:
        mine, _, _ = prepared(run, "dense")
        run.save(tmp_path / "saved")
        with torch.no_grad():
            mine.bias.fill_(float("nan"))
        with pytest.raises(NotFinite, match="bias holds NaN or infinity, so nothing is written"):
            run.save(tmp_path / "saved")
        run.load(tmp_path / "saved")
        assert bool(mine.bias.isfinite().all())

    on_ranks(2, body)
