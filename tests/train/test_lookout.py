"""A run whose steps take another time: said, measured anew, planned anew, on all ranks after the same step."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from omnizen.events import NoteEvent, PlanEvent, read_events
from omnizen.measure.facts import Facts, GradientFacts, StepFacts
from omnizen.measure.links import measure_links
from omnizen.plan.departure import Expectation
from omnizen.plan.search import make_plan
from omnizen.train import auto, lookout
from omnizen.train.lookout import Lookout
from omnizen.train.run import Run
from tests.train.helpers import on_ranks, run_ranks, sgd, weights

EVERY = 4


@pytest.fixture(autouse=True)
def _brief(monkeypatch) -> None:
    monkeypatch.setattr(auto, "LINKS_BUDGET_S", 0.1)
    monkeypatch.setattr(lookout, "EVERY", EVERY)


def played(comm, looks, elapsed_s) -> tuple[list[str], list[Any], int]:
    """Let a lookout see steps of (seconds, seconds of computing), some of each in turn, on a clock of its own."""
    facts = Facts(
        torch_version="2",
        world_size=comm.size,
        links=measure_links(comm, 0.1),
        gradients=[GradientFacts(name="w", kind="dense", shape=(100,))],
        step=StepFacts(compute_s=0.01, backward_s=0.005, samples=8),
    )
    notes: list[str] = []
    followed: list[Any] = []
    now = [0.0]
    engine: Any = SimpleNamespace(observers=[], control=comm, gradients=comm, call=lambda body: body())
    seen = Lookout(engine, lambda *given: followed.append(given), notes.append, clock=lambda: now[0])
    seen.expect(make_plan(facts), facts)
    at = 0.0
    first: Any = SimpleNamespace(backward_ended_s=0.0, ended_s=0.0)
    seen.round(first)
    for number, (step_s, compute_s) in enumerate(looks):
        now[0] = elapsed_s * (number + 1)
        for _ in range(EVERY):
            done: Any = SimpleNamespace(backward_ended_s=at + compute_s[comm.rank], ended_s=at + step_s)
            seen.round(done)
            at += step_s
    return notes, followed, seen.replanned


SLOWER = [(0.02, (0.01, 0.01))] + 3 * [(0.1, (0.01, 0.09))]


def test_a_rank_that_became_slow_is_named_and_all_plan_anew_at_the_same_look() -> None:
    results = run_ranks(2, lambda comm: played(comm, SLOWER, elapsed_s=1000.0))
    for notes, followed, replanned in results:
        assert replanned == 1
        ((plan, facts, _),) = followed
        assert (plan, facts) == results[0][1][0][:2]
        assert facts.step.compute_s == pytest.approx(0.09)
        assert facts.step.backward_s == pytest.approx(0.045)
        said = [note for note in notes if "measured anew" in note]
        assert len(said) == 1
        assert "rank 1 takes 9.0 times as long for its own computing" in said[0]


def test_short_runs_only_say_so() -> None:
    for notes, followed, replanned in run_ranks(2, lambda comm: played(comm, SLOWER, elapsed_s=5.0)):
        assert (followed, replanned) == ([], 0)
        assert len([note for note in notes if "more than its share" in note]) == 1


def test_a_run_that_goes_on_as_before_is_left_alone() -> None:
    even = [(0.02 + 0.001 * (i % 3), (0.01, 0.01)) for i in range(6)]
    for notes, followed, _ in run_ranks(2, lambda comm: played(comm, even, elapsed_s=1000.0)):
        assert followed == []
        assert all("were predicted" in note for note in notes)


class Words(nn.Module):
    """A table and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2000, 8, sparse=True)

    def forward(self, ids):
        return self.table(ids).square().mean()


def test_a_run_follows_the_plan_made_anew(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lookout, "affordable", lambda *_: True)
    monkeypatch.setattr(Expectation, "tell", lambda self, look: "links are slower")
    torch.manual_seed(0)
    model = Words()

    def body(run: Run):
        mine = copy.deepcopy(model)
        _, optimizer, _ = run.prepare(mine, sgd(mine), plan="auto")
        for step in range(auto.WATCHED_STEPS + EVERY + 3):
            optimizer.zero_grad()
            mine(torch.arange(step, step + 8)).backward()
            optimizer.step()
        return run._lookout.replanned, run.plan, weights(mine)

    results = on_ranks(2, body, run_dir=tmp_path)
    assert [r[0] for r in results] == [1, 1]
    assert results[0][1] == results[1][1]
    assert torch.equal(*(r[2]["table.weight"] for r in results))
    for rank in range(2):
        events = read_events(tmp_path / f"events-rank{rank}.jsonl").events
        assert len([e for e in events if isinstance(e, PlanEvent)]) == 2
        assert [e.text for e in events if isinstance(e, NoteEvent) and "links are slower" in e.text]
