"""Ten steps equal five, save, load and five, bit for bit."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen import catalog
from omnizen.errors import UserError
from omnizen.protocols import Ready
from omnizen.reducers.feedback import RESIDUAL, feedback
from omnizen.train import auto
from omnizen.train.router import Routing, build
from omnizen.train.run import Run
from omnizen.types import Contribution, Dense, Reduced, State
from tests.train.helpers import assert_equal, make_run, on_ranks, run_ranks, weights


@dataclass(frozen=True)
class HalfWithFeedback:
    """Sends every other element in turn and keeps the rest for later: the smallest reducer with a memory."""

    name = "half"
    takes = (Dense,)
    agrees = conserves = True
    exact = False

    def init(self, like: Contribution) -> State:
        return State(slots={"residual": torch.zeros_like(like.values)}, scalars={"calls": 0.0})

    def start(self, x, state, comm, step):
        whole = x.values + state.slots["residual"]
        sent = whole * (torch.arange(len(whole)) % 2 == step.n % 2)
        mean = comm.all_reduce(sent).wait() / comm.size
        kept = State({"residual": whole - sent}, {"calls": state.scalars["calls"] + 1})
        return Ready(Reduced(Dense(mean), Dense(sent), kept))

    def traffic(self, pattern, size):
        raise NotImplementedError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(30, 4, sparse=True)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(nn.functional.dropout(self.norm(self.table(ids)), self.drop))

    drop = 0.0


torch.manual_seed(0)
NET = Net()


class Noisy(TensorDataset):
    """Draws from all three global generators for each sample."""

    def __getitem__(self, i):
        ids, label = super().__getitem__(i)
        return ids, (label + random.randrange(3) + np.random.randint(3)) % 3


def data(kind) -> DataLoader:
    made = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(30, (28, 5), generator=made), torch.randint(3, (28,), generator=made)
    return DataLoader(kind(ids, labels), batch_size=4, shuffle=True)


def seed_all() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def prepare(run: Run, drop: float, lossy: bool, kind) -> tuple:
    model = copy.deepcopy(NET)
    model.drop = drop
    sparse = torch.optim.SGD([model.table.weight], 0.1)
    rest = torch.optim.Adam([*model.norm.parameters(), *model.head.parameters()], 0.01)
    _, optimizers, loader = run.prepare(model, [sparse, rest], data(kind), plan="zen-coo")
    if lossy:
        routing = Routing({"table.weight": "zen-coo"})
        run.engine.route(
            build(model, routing, lambda scheme, _: feedback(catalog.reducer(scheme, values="float16")))
        )
    return model, optimizers, loader


def steps(run: Run, prepared: tuple, count: int) -> list[float]:
    model, optimizers, loader = prepared
    losses: list[float] = []
    while True:
        for ids, labels in loader:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(ids), labels)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
            if len(losses) == count:
                return losses


@pytest.mark.parametrize(
    ("size", "drop", "kind"),
    [(2, 0.0, TensorDataset), (1, 0.5, Noisy)],  # threads share the global generators, so noise is for one rank
)
def test_resuming_is_bit_identical(size: int, drop: float, kind, tmp_path: Path) -> None:
    lossy = size > 1

    def whole(run: Run):
        seed_all()
        prepared = prepare(run, drop, lossy, kind)
        return steps(run, prepared, 10), weights(prepared[0])

    def first(run: Run):
        seed_all()
        prepared = prepare(run, drop, lossy, kind)
        losses = steps(run, prepared, 5)
        run.save(tmp_path / "half")
        return losses

    def second(run: Run):
        prepared = prepare(run, drop, lossy, kind)
        run.load(tmp_path / "half")
        return steps(run, prepared, 5), weights(prepared[0]), run.step

    expected, begun = on_ranks(size, whole), on_ranks(size, first)
    for (losses, end), head, (tail, resumed, step) in zip(expected, begun, on_ranks(size, second), strict=True):
        assert head + tail == losses
        assert_equal(resumed, end)
        assert step == 10
    torch.load(tmp_path / "half" / "shared.pt", weights_only=True)
    kept = torch.load(tmp_path / "half" / "rank0.pt", weights_only=True)["reducers"]
    if lossy:
        assert kept["table.weight"]["slots"][RESIDUAL].abs().max() > 0
    assert len(list((tmp_path / "half").glob("rank*.pt"))) == size


def test_another_number_of_ranks_or_another_model_is_refused(tmp_path: Path) -> None:
    def saved(run: Run) -> None:
        prepared = prepare(run, 0.0, False, TensorDataset)
        steps(run, prepared, 1)
        run.save(tmp_path / "one")

    on_ranks(2, saved)

    def other_size(comm) -> None:
        run = make_run(comm)
        prepare(run, 0.0, False, TensorDataset)
        with pytest.raises(UserError, match="made by 2 ranks, this run has 1"):
            run.load(tmp_path / "one")
        with pytest.raises(UserError, match="no complete checkpoint for rank 0"):
            run.load(tmp_path / "none")

    run_ranks(1, other_size)

    def other_model(comm) -> None:
        run, model = make_run(comm), nn.Linear(2, 2)
        run.prepare(model, torch.optim.SGD(model.parameters(), 0.1), plan="dense")
        with pytest.raises(UserError, match="another model"):
            run.load(tmp_path / "one")

    run_ranks(2, other_model)


def test_a_plan_is_kept(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(auto, "LINKS_BUDGET_S", 0.1)
    model = nn.Linear(3, 2)

    def start(run: Run):
        mine = copy.deepcopy(model)
        run.prepare(mine, torch.optim.SGD(mine.parameters(), 0.1))
        return mine

    def first(run: Run):
        mine = start(run)
        for _ in range(auto.WATCHED_STEPS):
            mine(torch.ones(1, 3)).sum().backward()
        run.save(tmp_path / "planned")
        return run.plan

    def second(run: Run):
        start(run)
        run.load(tmp_path / "planned")
        assert run.engine.probe is None, "a plan is there, so nothing is watched"
        return run.plan

    plans = on_ranks(2, first)
    assert plans[0] is not None
    assert on_ranks(2, second) == plans


def test_feedback_over_micro_batches_compresses_once_a_step() -> None:
    """Case 25: four micro-batches give the update of one large batch."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4).double()
    x = torch.randn(2, 3, 8, 6, dtype=torch.float64)  # [rank, step, sample, feature]

    def body(run: Run, micro: int):
        mine = copy.deepcopy(model)
        _, optimizer, _ = run.prepare(mine, torch.optim.SGD(mine.parameters(), 0.1), plan="dense")
        run.engine.route(build(mine, Routing({}), lambda s, v: HalfWithFeedback()))
        for batch in x[run.rank]:
            optimizer.zero_grad()
            *most, last = batch.chunk(micro)
            with run.no_sync():
                for part in most:
                    (mine(part).square().mean() / micro).backward()
            (mine(last).square().mean() / micro).backward()
            optimizer.step()
        return weights(mine), [unit.state.scalars["calls"] for unit in run.engine.units]

    large, small = (on_ranks(2, lambda run, m=micro: body(run, m)) for micro in (1, 4))
    for (a, calls), (b, calls_micro) in zip(large, small, strict=True):
        assert calls == calls_micro == [3.0]
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-12, atol=1e-12)
