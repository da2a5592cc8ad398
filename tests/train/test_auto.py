"""plan="auto": watched steps, one plan for all, the same result as one process."""

from __future__ import annotations

import copy
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from omnizen.errors import UserError
from omnizen.events import NoteEvent, PlanEvent, SpanEvent, StepEvent, read_events
from omnizen.measure.facts import Facts
from omnizen.plan.plan import Plan
from omnizen.train import auto
from omnizen.train.run import Run
from omnizen.train.units import RowTable
from tests.train.helpers import alone, assert_close, make_run, on_ranks, run_ranks, sgd, weights


class Words(nn.Module):
    """A dense embedding of which a batch touches few rows, and a head."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(20_000, 16, sparse=sparse)
        self.head = nn.Linear(16, 4)
        self.double()

    def forward(self, ids):
        return self.head(self.table(ids)).square().mean()


@pytest.fixture(autouse=True)
def _brief(monkeypatch) -> None:
    monkeypatch.setattr(auto, "LINKS_BUDGET_S", 0.2)


@pytest.mark.parametrize("sparse", [True, False])
def test_planned_training_equals_one_process(sparse: bool, tmp_path: Path, caplog) -> None:
    torch.manual_seed(0)
    model = Words(sparse)
    shares = [[torch.randint(20_000, (8,)) for _ in range(6)] for _ in range(2)]

    def body(run: Run):
        mine = copy.deepcopy(model)
        _, optimizer, _ = run.prepare(mine, sgd(mine), plan="auto")
        kinds = []
        for ids in shares[run.rank]:
            optimizer.zero_grad()
            loss = mine(ids)
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            kinds.append(next(type(u) for u in run.engine.units if u.name == "table.weight"))
        assert mine.table.weight.grad.is_sparse == sparse
        return weights(mine), run.plan, run.facts, kinds

    with caplog.at_level(logging.INFO, logger="omnizen"):
        results = on_ranks(2, body, run_dir=tmp_path)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "omnizen"]  # rank 0's, once
    assert said.startswith(f"plan in force from step {auto.WATCHED_STEPS - 1}: table.weight by ")
    expected = alone(model, [torch.cat(pair) for pair in zip(*shares, strict=True)], lambda m, ids: m(ids))
    for result, plan, facts, kinds in results:
        assert_close(result, expected)
        assert plan.scheme("table.weight") != "dense", "16 of 20,000 rows"
        assert plan.scheme("head.weight") == "dense"
        assert kinds[-1] is RowTable
        assert plan == results[0][1]
        assert facts == results[0][2]
        assert facts.gradients[0].density == pytest.approx(8 / 20_000, rel=0.01)
        assert facts.step is not None
        ready = {g.name: g.ready for g in facts.gradients}
        assert 0 <= ready["head.weight"] <= ready["table.weight"] <= 1, "backward reaches the table last"
    assert Plan.load(tmp_path / "plan.toml") == results[0][1]
    assert Facts.load(tmp_path / "facts.toml") == results[0][2]
    events = read_events(tmp_path / "events-rank1.jsonl").events
    steps = [e for e in events if isinstance(e, StepEvent)]
    assert [e.step for e in steps] == list(range(6))
    assert all(e.loss is not None and 0 < e.compute_s <= e.step_s for e in steps)
    assert [e.step for e in events if isinstance(e, PlanEvent)] == [2]
    assert {e.step for e in events if isinstance(e, SpanEvent)} <= {2, 3, 4, 5}
    (note,) = [e for e in events if isinstance(e, NoteEvent)]
    assert note.text.startswith("planning"), "and none on the start, as the models were equal"


def test_a_plan_file_is_followed_and_a_foreign_one_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Words(sparse=True)

    def plan(run: Run):
        mine = copy.deepcopy(model)
        run.prepare(mine, sgd(mine), plan="auto")
        for _ in range(3):
            mine(torch.arange(8)).backward()
        return run.plan

    made = on_ranks(2, plan)[0]
    path = tmp_path / "kept.toml"
    made.save(path)

    def follow(run: Run):
        mine = copy.deepcopy(model)
        run.prepare(mine, sgd(mine), plan=path)
        mine(torch.arange(8)).backward()
        return [u.name for u in run.engine.units if isinstance(u, RowTable)]

    assert on_ranks(2, follow) == [["table.weight"]] * 2

    def refused(comm) -> None:
        with pytest.raises(UserError, match="2 workers, this job has 3"):
            make_run(comm).prepare(model, sgd(model), plan=made)

    run_ranks(3, refused)


def test_a_run_of_one_needs_no_plan() -> None:
    def body(run: Run):
        model = Words(sparse=True)
        _, optimizer, _ = run.prepare(model, sgd(model))
        for _ in range(4):
            model(torch.arange(8)).backward()
            optimizer.step()
        return run.plan, run.step

    assert on_ranks(1, body) == [(None, 4)]
