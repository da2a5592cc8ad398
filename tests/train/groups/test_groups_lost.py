"""Groups that die, messages that come twice, machines that come back too late."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen.comm.faults import Drop, Dropped, Faults, Faulty, Repeat
from omnizen.comm.threads import run_ranks
from omnizen.comm.torch_pg import thread_gloo_ranks
from omnizen.errors import PeerLost, TakenForLost
from omnizen.strategies.groups import groups
from omnizen.train.run import Run
from tests.train.groups.turns import LIMIT_S, Turns
from tests.train.helpers import assert_equal, make_run, weights

with torch.random.fork_rng():  # drawn before ranks begin: as threads they share torch's generator
    torch.manual_seed(0)
    MODEL = nn.Sequential(nn.Linear(40, 700), nn.Tanh(), nn.Linear(700, 40))


def big() -> nn.Module:
    """A model of three shards on three ranks."""
    return copy.deepcopy(MODEL)


def train(run: Run, turns: Turns, steps: int, strategy: Any) -> nn.Module:
    model = big()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    run.prepare(model, optimizer, plan=strategy)
    x = torch.linspace(-1, 1, 120).view(3, 40) + run.rank
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        turns.take(run.rank, optimizer.step)
    return model


def test_a_message_that_comes_twice_counts_once() -> None:
    repeat = Repeat(rank=1, step=2)
    results = []
    for script in ((), (repeat,)):
        faults, turns = Faults(*script), Turns([0, 1] * 4)

        def body(comm: Any, turns: Turns = turns) -> dict[str, torch.Tensor]:
            run = make_run(comm)
            model = train(run, turns, 4, groups(2))
            run.flush()
            assert [server.version for server in run.driver.service.servers.values()] == [8]
            run.close()
            return weights(model)

        results.append(run_ranks(2, body, wrap=lambda comm, faults=faults: Faulty(comm, faults)))
        assert [faults.count(fault) for fault in script] == [1] * len(script)
    assert_equal(results[0][0], results[1][0])
    assert_equal(results[0][0], results[1][1])


@pytest.mark.parametrize("launch", [run_ranks, thread_gloo_ranks], ids=["threads", "gloo"])
@pytest.mark.parametrize("gone", [0, 1])
def test_the_others_go_on_without_a_group_that_died(launch: Any, gone: int) -> None:
    others = [rank for rank in range(3) if rank != gone]
    drop, turns = Drop(gone, 3), Turns([0, 1, 2] * 4 + others * 4)
    faults = Faults(drop)

    def body(comm: Any) -> Any:
        run = make_run(Faulty(comm, faults))
        try:
            model = train(run, turns, 8, groups(3))
        except Dropped:
            run._end(announce=False)
            return None
        run.flush()
        assert run.driver.members.lost == {gone}
        versions = {shard: server.version for shard, server in run.driver.service.servers.items()}
        applied = {server.applied[gone] for server in run.driver.service.servers.values()}
        notes = [note for note in run.driver.notes if f"rank {gone} is lost" in note]
        run.close()
        return weights(model), versions, applied, notes

    results = launch(3, body, timeout_s=LIMIT_S)
    assert faults.count(drop) == 1
    assert results[gone] is None
    first, second = (results[rank] for rank in others)
    assert_equal(first[0], second[0])
    # three contributions of the dead group, eight of each other, on every shard, whoever serves it now
    assert sorted(first[1] | second[1]) == [0, 1, 2]
    assert set((first[1] | second[1]).values()) == {3 + 8 + 8}
    assert first[2] | second[2] == {2}
    assert any(f"serves shard {gone} from now on" in note for note in first[3] + second[3])


def test_those_who_are_left_of_a_broken_group_hear_who_was_lost() -> None:
    turns = Turns([0] * 10)

    def body(comm: Any) -> Any:
        run = make_run(comm)
        if comm.rank == 0:
            train(run, turns, 4, groups([[0], [1, 2]]))
            await_loss(run, 2)
            return run.driver.members.working()
        if comm.rank == 2:
            train(run, turns, 0, groups([[0], [1, 2]]))
            return None
        with pytest.raises(PeerLost, match="rank 2"):
            train(run, turns, 1, groups([[0], [1, 2]]))
        return None

    assert run_ranks(3, body)[0] == [0]


def await_loss(run: Run, peer: int) -> None:
    """Wait until a rank is known to be gone."""
    deadline_s = time.monotonic() + LIMIT_S
    while peer not in run.driver.members.lost:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_a_rank_that_was_taken_for_lost_is_refused_and_changes_nothing() -> None:
    turns = Turns([0, 1, 2] * 2 + [0, 2] * 2 + [1, 0, 2])

    def body(comm: Any) -> Any:
        run = make_run(comm)
        if comm.rank == 1:
            with pytest.raises(TakenForLost, match="Start it again from a checkpoint"):
                train(run, turns, 3, groups(3))
            return None
        model = big()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        run.prepare(model, optimizer, plan=groups(3))
        for step in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 40)).square().mean().backward()

            def step_on(step: int = step) -> None:
                if step == 2:  # as if it had been silent for longer than the limit
                    run.driver.client.lose(1)
                optimizer.step()

            turns.take(run.rank, step_on)
        turns.take(run.rank, lambda: None)  # rank 1 has come back, and was refused
        run.flush()
        versions = {server.version for server in run.driver.service.servers.values()}
        run.close()
        return weights(model), versions

    first, _, last = run_ranks(3, body)
    assert_equal(first[0], last[0])
    assert first[1] | last[1] == {2 + 4 + 4}


def test_what_a_dead_group_had_drawn_is_read_by_others() -> None:
    samples, epochs = 12, 2

    def body(comm: Any) -> list[int]:
        run = make_run(comm)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        data = TensorDataset(torch.arange(samples).float().view(-1, 1))
        loader = DataLoader(data, batch_size=2, shuffle=True)
        _, _, loader = run.prepare(model, optimizer, loader, plan=groups(3))
        read: list[int] = []
        if comm.rank == 2:
            next(iter(loader))
            run.gradients.barrier()
            return []
        run.gradients.barrier()  # then rank 2 has drawn
        await_loss(run, 2)
        for _ in range(epochs):
            for (x,) in loader:
                read += x.view(-1).int().tolist()
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        run.close()
        return read

    results = run_ranks(3, body, timeout_s=LIMIT_S)
    assert sorted(results[0] + results[1]) == sorted(list(range(samples)) * epochs)
