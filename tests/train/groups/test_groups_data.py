"""Samples and checkpoints of compute groups."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen.comm.meter import Metered
from omnizen.comm.torch_pg import thread_gloo_ranks
from omnizen.errors import UserError
from omnizen.strategies.groups import groups
from omnizen.train.checkpoint import read_tensors
from omnizen.train.run import Run
from tests.train.groups.turns import Turns
from tests.train.helpers import assert_equal, make_run, on_ranks, weights


def prepared(run: Run, strategy: Any, samples: int = 23, batch: int = 2, workers: int = 0) -> Any:
    model = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
    for param in model.parameters():  # as threads, ranks share torch's generator
        nn.init.constant_(param, 0.1)
    nn.init.constant_(model[0].bias, -0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = TensorDataset(torch.arange(float(samples)).view(-1, 1))
    loader = DataLoader(data, batch_size=batch, shuffle=True, num_workers=workers)
    return run.prepare(model, optimizer, loader, plan=strategy)


def one_step(made: Any, x: torch.Tensor) -> list[int]:
    model, optimizer, _ = made
    optimizer.zero_grad()
    (model(x / 23) - 1).square().mean().backward()
    optimizer.step()
    return x.view(-1).int().tolist()


def in_turns(run: Run, made: Any, turns: Turns, batches: Any = None) -> list[int]:
    """Draw a batch and train on it, whenever it is this rank's turn."""
    batches, read = iter(made[2]) if batches is None else batches, []
    for _ in range(turns.of(run.rank)):
        turns.take(run.rank, lambda: read.extend(one_step(made, next(batches)[0])))
    return read


def test_groups_read_each_sample_once_an_epoch() -> None:
    def body(run: Run) -> list[int]:
        made = prepared(run, groups([[0, 2], [1]]))
        return [i for _ in range(3) for (x,) in made[2] for i in one_step(made, x)]

    results = on_ranks(3, body)
    assert Counter(i for read in results for i in read) == dict.fromkeys(range(23), 3)
    assert len(results[0]) - len(results[2]) in range(12)  # members of a group share each batch


def test_a_group_that_is_fast_reads_more() -> None:
    turns = Turns([0, 0, 0, 1] * 3)

    def body(run: Run) -> int:
        made = prepared(run, groups(2), samples=24)
        count = len(in_turns(run, made, turns))
        run.flush()  # all have had their turns
        assert next(iter(made[2].sampler), None) is None  # the epoch has no more
        return count

    assert on_ranks(2, body) == [18, 6]


@pytest.mark.parametrize("gloo", [False, True], ids=["threads", "gloo"])
def test_goes_on_from_a_checkpoint(tmp_path: Path, gloo: bool) -> None:
    halves, first, second = [Turns([0, 1] * 3) for _ in range(2)], Turns([0, 1] * 3), Turns([0, 1] * 3)

    def uninterrupted(run: Run) -> Any:
        made = prepared(run, groups(2), samples=24)
        batches = iter(made[2])
        for half in halves:
            in_turns(run, made, half, batches)
            run.flush()  # saving does so too
        return weights(made[0])

    def saved(run: Run) -> Any:
        made = prepared(run, groups(2), samples=24)
        read = in_turns(run, made, first)
        run.save(tmp_path / "saved")
        assert not run.optimizers[0].state
        return read

    def resumed(run: Run) -> Any:
        made = prepared(run, groups(2), samples=24)
        run.load(tmp_path / "saved")
        assert run.step == 3
        read = in_turns(run, made, second)
        run.flush()
        return read, weights(made[0])

    def on(body: Any) -> list[Any]:
        def work(comm: Any) -> Any:
            run = make_run(Metered(comm))
            result = body(run)
            run.close()
            return result

        return thread_gloo_ranks(2, work) if gloo else on_ranks(2, body)

    wanted = on(uninterrupted)
    read = on(saved)
    results = on(resumed)
    assert sorted(read[0] + read[1] + results[0][0] + results[1][0]) == list(range(24))
    assert_equal(results[0][1], results[1][1])
    assert_equal(results[0][1], wanted[0])


def test_a_checkpoint_of_groups_holds_momentum_for_other_strategies(tmp_path: Path) -> None:
    turns = Turns([0, 1] * 6)

    def saved(run: Run) -> None:
        made = prepared(run, groups(2), samples=24)
        in_turns(run, made, turns)
        run.save(tmp_path / "saved")

    on_ranks(2, saved)
    shared = torch.load(tmp_path / "saved" / "shared.pt", weights_only=True)
    assert shared["step"] == 12
    found = read_tensors(tmp_path / "saved" / "shared")
    assert all(found[f"optimizer0/{name}/momentum_buffer"].any() for name in ("0.weight", "0.bias", "2.weight"))


def test_other_groups_are_refused_at_a_place_in_the_data(tmp_path: Path) -> None:
    def saved(run: Run) -> None:
        prepared(run, groups(2), samples=24)
        run.save(tmp_path / "saved")

    def resumed(run: Run) -> None:
        prepared(run, groups([[1], [0]]), samples=24)
        with pytest.raises(UserError, match="groups"):
            run.load(tmp_path / "saved")

    on_ranks(2, saved)
    on_ranks(2, resumed)


def test_traffic_of_a_step_is_the_model_there_and_back() -> None:
    turns = Turns([0, 1] * 4)

    def body(comm: Any) -> tuple[float, float]:
        run = make_run(Metered(comm))
        model = copy.deepcopy(nn.Linear(100, 1000))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run.prepare(model, optimizer, plan=groups(2))
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 100)).sum().backward()
            turns.take(run.rank, optimizer.step)
        comm.barrier()
        before = run.gradients.reading()
        comm.barrier()  # all have read their meters
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 100)).sum().backward()
            turns.take(run.rank, optimizer.step)
        comm.barrier()
        moved = run.gradients.reading() - before
        run.close()
        return moved.tx_bytes, moved.rx_bytes

    half = 101_000 * 4 / 2
    for tx, rx in thread_gloo_ranks(2, body):
        # two steps; half of the model lies on the other rank, and the other rank asks for this one's half
        assert tx == pytest.approx(4 * half, rel=0.02)
        assert rx == pytest.approx(4 * half, rel=0.02)


def test_batches_count_as_read_once_their_step_is_done() -> None:
    def body(run: Run) -> list[list[tuple[int, int, int]]]:
        model, optimizer, loader = prepared(run, groups(2), samples=24)
        read, at_host = [], run.driver.service.book
        for number, (x,) in enumerate(loader if run.rank == 0 else []):
            with run.no_sync():
                model(x).sum().backward()
            if number == 1:
                model(x).sum().backward()
                optimizer.step()
            read.append(at_host.read())
            if number == 2:
                break
        return read

    assert on_ranks(2, body)[0] == [[], [], [(0, 0, 4)]]
