"""Plans that hold a whole strategy: training follows them, whatever they ask for."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen.errors import UserError
from omnizen.measure.model import model_digest
from omnizen.plan.batch_control import BatchLaw
from omnizen.plan.plan import Execution, Plan, Prediction, TensorPlan
from omnizen.strategies import groups, local_sgd
from omnizen.train.course import Course, set_course
from omnizen.train.groups.driver import Groups
from omnizen.train.local import LocalSteps
from omnizen.train.run import Run
from omnizen.train.units import RowTable
from tests.train.groups.turns import Turns
from tests.train.helpers import alone, assert_close, assert_equal, on_ranks, weights

ROWS = 48


class Net(nn.Module):
    """A table and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 3, sparse=True)
        self.head = nn.Linear(3, 1)
        self.double()

    def forward(self, ids):
        return self.head(self.table(ids)).square().mean()


def made(**execution: Any) -> Plan:
    """Return a plan for ``Net`` on as many ranks as ``batch_shares`` has."""
    strategy = execution.get("strategy", "sync")
    rates = {"update_s": 1.0, "samples_per_s": 1.0, "relative": 0.5, "relative_low": 0.5, "relative_high": 0.5}
    tensors = [("table.weight", "row-sparse", "zen-bitmap"), ("head.weight", "dense", "dense")]
    return Plan(
        world_size=len(execution["batch_shares"]),
        model_digest=model_digest(Net()),
        torch_version=torch.__version__,
        strategy=strategy,
        execution=Execution(**rates, **execution),
        tensors=[
            TensorPlan(name=name, kind=kind, scheme=scheme, predicted_s=0.1, rx_bytes=1.0)
            for name, kind, scheme in tensors
        ],
        prediction=Prediction(step_s=1, compute_s=1, exposed_comm_s=0, comm_s=0, rx_bytes_per_step=1),
    )


def prepared(run: Run, plan: Any, *, momentum: float = 0.9, batch: int = 4, **options: Any) -> Any:
    torch.manual_seed(0)
    model = Net()
    with torch.no_grad():  # as threads, ranks share torch's generator
        for param in model.parameters():
            param.copy_(torch.linspace(-1, 1, param.numel(), dtype=param.dtype).view(param.shape))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    loader = DataLoader(TensorDataset(torch.arange(ROWS)), batch_size=batch)
    return run.prepare(model, optimizer, loader, plan=plan, **options)


def train(run: Run, parts: Any, batches: Any = None) -> list[list[int]]:
    model, optimizer, loader = parts
    read = []
    for (ids,) in loader if batches is None else batches:
        optimizer.zero_grad()
        model(ids).backward()
        optimizer.step()
        read.append(ids.tolist())
    return read


def test_groups_with_their_ranks_samples_momentum_and_schemes(tmp_path: Path, caplog) -> None:
    plan = made(strategy="groups", groups=[[0, 2], [1]], batch_shares=[5, 6, 1], momentum=-0.1)
    path = plan.save(tmp_path / "plan.toml")

    def body(run: Run) -> Any:
        parts = prepared(run, path)
        assert isinstance(run.driver, Groups)
        assert [unit.reducer.name for unit in run.engine.units if isinstance(unit, RowTable)] == ["zen-bitmap"]
        found = run.driver.members.groups, run.optimizers[0].param_groups[0]["momentum"], run.plan
        return train(run, parts), found

    with caplog.at_level(logging.INFO, logger="omnizen"):
        results = on_ranks(3, body)
    assert all(found == ([[0, 2], [1]], -0.1, plan) for _, found in results)
    read = [batches for batches, _ in results]
    assert Counter(i for batches in read for batch in batches for i in batch) == dict.fromkeys(range(ROWS), 1)
    whole = [sizes for sizes in zip(*(map(len, read[r]) for r in (0, 2)), strict=True) if sum(sizes) == 6]
    assert whole
    assert all(sizes == (5, 1) for sizes in whole)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "omnizen"]
    assert said.startswith("plan in force from step 0: 2 groups, uneven shares of ranks 0, 2; 1, 5/6/1 samples, ")
    assert "momentum -0.1" in said
    assert "; momentum was 0.9 (more: " in said


def test_groups_of_a_plan_train_as_those_of_the_call() -> None:
    turns = [Turns([0, 1, 1, 0, 0, 1]), Turns([0, 1, 1, 0, 0, 1])]

    def body(run: Run) -> Any:
        def trained(strategy: Any, order: Turns) -> Any:
            run_ = Run(run.gradients.sub([0, 1], "g"), run.control.sub([0, 1], "c"))
            model, optimizer, loader = prepared(run_, strategy, momentum=0.3)
            batches = iter(loader)
            for _ in range(order.of(run.rank)):
                order.take(run.rank, lambda: train(run_, (model, optimizer, None), [next(batches)]))
            run_.flush()
            found = weights(model)
            run_.close()
            return found

        execution = {"strategy": "groups", "groups": [[0], [1]], "batch_shares": [4, 4]}
        return trained(made(**execution), turns[0]), trained(groups(2), turns[1])

    for by_plan, by_call in on_ranks(2, body):
        assert_close(by_plan, by_call)


def test_local_steps_by_rank() -> None:
    plan = made(strategy="local", local_steps=[3, 1], batch_shares=[4, 4], momentum=0.5)

    def body(run: Run) -> Any:
        parts = prepared(run, plan)
        assert isinstance(run.driver, LocalSteps)
        assert not any(isinstance(unit, RowTable) for unit in run.engine.units)
        assert run.optimizers[0].param_groups[0]["momentum"] == 0.5
        return train(run, parts), weights(parts[0])

    (fast, after), (slow, same) = on_ranks(2, body)
    assert (len(fast), len(slow)) == (9, 3)
    assert Counter(i for batches in (fast, slow) for batch in batches for i in batch) == dict.fromkeys(
        range(ROWS), 1
    )
    assert_equal(after, same)


def test_uneven_samples_of_synchronous_training(caplog) -> None:
    plan = made(batch_shares=[12, 4])

    def body(run: Run) -> Any:
        parts = prepared(run, plan, momentum=0.0)
        assert run.batch_sizes == (6, 2)
        return train(run, parts), weights(parts[0]), copy.deepcopy(parts[0])

    with caplog.at_level(logging.INFO, logger="omnizen"):
        results = on_ranks(2, body)
    assert [[len(batch) for batch in read] for read, _, _ in results] == [[6] * 6, [2] * 6]
    assert "synchronous, uneven shares, 12/4 samples, table.weight by zen-bitmap" in caplog.text

    def first(run: Run) -> Any:
        return copy.deepcopy(prepared(run, "dense")[0])

    (start, _) = on_ranks(2, first)
    expected = alone(start, [torch.arange(n, n + 8) for n in range(0, ROWS, 8)], lambda m, ids: m(ids))
    for _, found, _ in results:
        assert_close(found, expected)


@pytest.mark.parametrize(
    "execution",
    [
        {"strategy": "groups", "groups": [[0], [1]], "momentum": 0.1},
        {"strategy": "local", "local_steps": [2, 1]},
        {"batch_shares": [6, 2]},
    ],
)
def test_goes_on_from_a_checkpoint(tmp_path: Path, execution: Any) -> None:
    plan = made(**{"batch_shares": [4, 4]} | execution)

    def first(run: Run) -> Any:
        parts = prepared(run, plan, momentum=0.0)
        read = train(run, parts, [next(iter(parts[2]))])
        run.save(tmp_path / "kept")
        return read, weights(parts[0])

    def second(run: Run) -> Any:
        parts = prepared(run, plan, momentum=0.0)
        run.load(tmp_path / "kept")
        start = weights(parts[0])
        return train(run, parts), start

    before, after = on_ranks(2, first), on_ranks(2, second)
    for (_, kept), (_, start) in zip(before, after, strict=True):
        assert_equal(kept, start)
    read = Counter(i for batches, _ in [*before, *after] for batch in batches for i in batch)
    assert set(read) <= set(range(ROWS))
    assert max(read.values()) == 1


def course(plan: Plan | None, **given: Any) -> Course:
    loader = DataLoader(TensorDataset(torch.arange(ROWS)), batch_size=4)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0, momentum=0.9)
    usual = {"balance": None, "loader": loader, "optimizers": [optimizer], "size": 2} | given
    return set_course(plan, local_sgd(4), **usual)  # type: ignore[arg-type]


def test_balance_beside_a_plan_with_samples() -> None:
    plan = made(batch_shares=[12, 4])
    assert course(plan).balance == (0.75, 0.25)
    assert course(plan).remarks == ()
    follows = course(plan, balance="auto")
    assert follows.balance == BatchLaw(start=(0.75, 0.25))
    assert "follow the ranks' speeds" in follows.remarks[0]
    own = course(plan, balance=[0.5, 0.5])
    assert own.balance == [0.5, 0.5]
    assert own.remarks == ("balance= replaces the plan's samples",)
    left = course(plan, loader=[torch.arange(4)])
    assert left.balance is None
    assert "make batches of 12, 4" in left.remarks[0]
    assert course(made(batch_shares=[4, 4]), balance="auto").balance == "auto"
    assert course(None, balance="auto") == Course(strategy=local_sgd(4), balance="auto")


@pytest.mark.parametrize(
    ("execution", "given", "words"),
    [
        ({"strategy": "local", "batch_shares": [4, 4]}, {}, "does not say how many"),
        ({"strategy": "local", "batch_shares": [5, 3], "local_steps": [4, 4]}, {}, "fewer local_steps"),
        ({"batch_shares": [5, 0]}, {}, "a sample or more"),
        ({"batch_shares": [5, 3]}, {"size": 3}, "each of 3 ranks"),
        (
            {"batch_shares": [4, 4], "momentum": 0.5},
            {"optimizers": [torch.optim.Adagrad([torch.zeros(1, requires_grad=True)])]},
            "Adagrad has none",
        ),
    ],
)
def test_plans_that_cannot_be_followed_are_refused(execution: Any, given: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        course(made(**execution), **given)


def test_plans_that_contradict_themselves_are_refused() -> None:
    plan = made(batch_shares=[4, 4])
    with pytest.raises(UserError, match=r"'groups', and its \[execution\] is 'sync'"):
        course(plan.model_copy(update={"strategy": "groups"}))
    with pytest.raises(UserError, match=r"'local', and its \[execution\] is missing"):
        course(plan.model_copy(update={"strategy": "local", "execution": None}))


def test_what_groups_refuse_is_refused_of_a_plan_too() -> None:
    def body(run: Run) -> None:
        plan = made(strategy="groups", groups=[[0], [1]], batch_shares=[4, 4])
        with pytest.raises(UserError, match="leave balance away"):
            prepared(run, plan, balance="auto")
        wrong = made(strategy="groups", groups=[[1]], batch_shares=[4, 4])
        with pytest.raises(UserError, match="each of the ranks"):
            prepared(run, wrong)
        with pytest.raises(UserError, match="goes on with the strategy that it began with"):
            prepared(run, "dense") and run.follow(plan)

    on_ranks(2, body)
