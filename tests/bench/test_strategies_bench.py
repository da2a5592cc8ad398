"""Whole strategies trained on thread ranks, and what their rows say beside predictions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from omnizen.bench.cases.case import Case
from omnizen.bench.strategies import KINDS, Settings, rows_of, run_strategies
from omnizen.bench.strategies_judged import judge
from omnizen.bench.strategies_trial import candidates, counted
from omnizen.bench.strategies_verdict import table, verdict
from omnizen.bench.strategies_worker import Found, StrategiesAnswer, StrategiesJob, explore
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.measure.facts import Facts
from omnizen.train import auto
from tests.plan.builders import GRADIENTS, MBIT, job

SHARED = {"bench": "strategies", "case": "tiny", "hosts": 2, "rate_mbit": None}


class Tiny(Case):
    """One linear layer."""

    name, unit = "tiny", "samples"

    def make_model(self, *, sparse, seed):
        del sparse, seed
        return nn.Linear(6, 2)

    def make_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def batch_at(self, step, *, rank, size, batch, seed):
        del step, rank, size, seed
        return (torch.ones(batch, 6),)

    def loss(self, model, batch):
        return model(batch[0]).square().mean()


def test_every_strategy_is_trained_on_threads_and_gets_its_rows(monkeypatch) -> None:
    monkeypatch.setattr(auto, "measure_devices", lambda comm: job(comm.size).devices)  # takes seconds
    task = StrategiesJob(
        limit_s=60,
        case="tiny",
        batches=[4],
        kinds=list(KINDS),
        rounds=1,
        seconds=0.02,
        rate_s=0.01,
        enough_s=60,
        seed=0,
    )

    def body(comm) -> StrategiesAnswer:
        answer = StrategiesAnswer(rank=comm.rank)
        explore(task, Tiny(), comm, answer, lambda _: None)
        return answer

    first, second = run_ranks(2, body, timeout_s=20.0)
    assert first.found[0].update_s == second.found[0].update_s
    names = {c.strategy for c in candidates(Facts.from_toml(first.found[0].facts), KINDS)}
    assert names == set(KINDS)
    rows = rows_of(first, Settings(hosts=2, draws=2), SHARED, {"cpu": []})
    times = [r for r in rows if r.metric == "update_s"]
    assert len({r.method for r in times}) == len(times) == len(first.found[0].update_s)
    assert all(r.value > 0 and r.params["samples_per_s"] > 0 for r in times)
    assert [r.method for r in rows if r.metric == "regret"] == ["plan", "formulas", "sync-even"] * 2
    assert table(rows).row_count == len(times)


def found_with(scale) -> tuple[Found, list]:
    """Pretend that each strategy took what the planner's own prediction says, times a factor."""
    told = job(4, 10 * MBIT, gradients=(GRADIENTS["lstm.weight"],))  # links so slow that local steps gain much
    devices = [d.model_copy(update={"samples_per_s": {"16": 60.0, "32": 64.0}}) for d in told.devices]
    facts = told.model_copy(update={"devices": devices})
    all_of_them = candidates(facts, KINDS)
    found = Found(batch=32, facts=facts.to_toml())
    for candidate in all_of_them:
        found.update_s.append([candidate.update_s * scale(candidate)])
        found.samples_per_s.append([candidate.samples_per_s / scale(candidate)])
    return found, all_of_them


def test_predictions_that_are_right_are_counted_and_picks_cost_nothing() -> None:
    found, all_of_them = found_with(lambda _: 1.0)
    rows = judge(found, KINDS, 3, SHARED, {})
    assert all(r.params["formula_over_measured"] == pytest.approx(1.0) for r in rows if r.metric == "update_s")
    regrets = [r.value for r in rows if (r.metric, r.method) == ("regret", "formulas")]
    assert max(regrets) <= 0.005  # of strategies as near as that, the simplest is taken
    count = sum(c.strategy == "local" for c in all_of_them)
    assert f"the planner's formulas, seconds of local: within 15% {count} of {count}" in "\n".join(verdict(rows))


def test_a_slow_strategy_that_was_picked_is_regretted() -> None:
    found, _ = found_with(lambda _: 1.0)
    before = judge(found, KINDS, 1, SHARED, {})
    pick = next(r.params["pick"] for r in before if (r.metric, r.method) == ("regret", "plan"))
    slow = [r.method for r in before if r.metric == "update_s"].index(pick)
    found.samples_per_s[slow] = [found.samples_per_s[slow][0] / 10]
    rows = judge(found, KINDS, 1, SHARED, {})
    regret = next(r for r in rows if (r.metric, r.method) == ("regret", "plan"))
    assert regret.params["pick"] == pick != regret.params["best"]
    assert regret.value > 0.5
    assert any("NOT reached" in line for line in verdict(rows))


def test_updates_are_counted_while_all_groups_are_at_work() -> None:
    ends = [[1.0, 2.0, 3.0, 4.0], [1.5, 2.5, 3.5, 4.5], [0.0, 2.0, 4.0]]
    assert counted([(0, 1), (2,)], ends) == pytest.approx([1.0, 0.5])
    with pytest.raises(UserError, match="ended before"):
        counted([(0,), (1,)], [[0.0, 1.0], [2.0, 3.0]])


def test_what_went_wrong_is_a_row() -> None:
    rows = run_strategies(Settings(hosts=2), launch=lambda *_: [1, 1])
    assert [r.metric for r in rows] == ["failed"]
    assert "rank 0 ended with status 1" in rows[0].params["reason"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"case": "cn"}, "did you mean 'cnn'"),
        ({"kinds": ("sync", "grups")}, "did you mean 'groups'"),
        ({"kinds": ("local",)}, "sync must be"),
        ({"cpu": (1.0,)}, "a speed for each"),
        ({"batches": (0,)}, "1 or more"),
    ],
)
def test_settings_that_are_refused(wrong, says) -> None:
    with pytest.raises(UserError, match=says):
        Settings(**wrong)
