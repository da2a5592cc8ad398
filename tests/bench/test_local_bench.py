"""The benchmark of local steps: training between tests, and rows from what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from omnizen.bench.curves.tasks import Task
from omnizen.bench.local import rows_of, run_local, table_of, verdict
from omnizen.bench.local_worker import METHODS, LocalAnswer, LocalJob, Reading, Trained, train
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.train.run import Run

SHARED = {"bench": "local", "case": "images", "hosts": 2, "rate_mbit": 1000.0}


def make_job(**changes) -> LocalJob:
    given = {
        "case": "images", "methods": ["fast-only", "local-biased"], "cpu": [1.0, 0.125], "seeds": 2, "samples": 64,
        "batch": 2, "lr": 0.1, "steps": 4, "pool": 2.0, "seconds": 1e-6, "epochs": 2.0, "cap_s": 50.0,
        "test_every_s": 0.01, "limit_s": 60.0, "out": Path(),
    }  # fmt: skip
    return LocalJob(**{**given, **changes})


def make_task() -> Task:
    inputs = torch.randn(80, 6, generator=torch.Generator().manual_seed(0))
    targets = (inputs.sum(1) > 0).long()
    return Task(
        name="images",
        make=lambda: nn.Linear(6, 2),
        inputs=inputs,
        targets=targets,
        test=(inputs[64:], targets[64:]),
    )


@pytest.mark.parametrize("method", METHODS)
def test_each_method_trains_until_its_budgets_are_used_up(method) -> None:
    job, task = make_job(), make_task()

    def body(comm) -> Trained:
        with Run(comm, comm.sub(range(comm.size), "control"), seed=0) as run:
            return train(job, method, 0, task, run)

    size = len(job.members(method))
    first, *others = run_ranks(size, body, timeout_s=20.0)
    assert first.tests[-1].samples >= 2.0 * 64
    assert all(other.tests[-1].samples == first.tests[-1].samples for other in others)
    assert [t.seconds for t in first.tests] == sorted(t.seconds for t in first.tests)
    assert bool(first.counts) == method.startswith("local")


def runs(method: str, ends: list[float]) -> list[Trained]:
    return [
        Trained(
            method=method,
            seed=seed,
            tests=[
                Reading(seconds=1.0, samples=64, accuracy=0.5, loss=1.0),
                Reading(seconds=end, samples=640, accuracy=0.9, loss=0.5),
            ],
        )
        for seed, end in enumerate(ends)
    ]


def test_rows_say_when_the_target_was_reached_and_how_good_it_was_at_each_budget() -> None:
    job = make_job(seconds=2.0)
    answer = LocalAnswer(rank=0, runs=runs("fast-only", [4.0, 6.0]) + runs("local-biased", [2.0, 1.5]))
    rows = rows_of(job, answer, SHARED, 0.8)
    found = {(r.method, r.metric): r.value for r in rows}
    assert found["fast-only", "time_to_target_s"] == 5.0
    assert found["local-biased", "time_to_target_s"] == 1.75
    assert found["fast-only", "accuracy_at_time"] == 0.5
    assert found["local-biased", "accuracy_at_time"] == 0.9
    assert found["fast-only", "accuracy_at_epochs"] == 0.9
    assert "2.86 times as fast as the fast hosts alone (2 and 2 of 2 runs; in every run)" in verdict(rows)[0]
    assert table_of(rows).row_count == 2
    json.dumps([r.params for r in rows])


def test_targets_that_no_run_reached_are_failures_and_no_claim_is_made() -> None:
    answer = LocalAnswer(rank=0, runs=runs("fast-only", [4.0]) + runs("local-biased", [2.0]))
    rows = rows_of(make_job(), answer, SHARED, 0.95)
    missed = [r for r in rows if r.metric == "failed"]
    assert {r.method for r in missed} == {"fast-only", "local-biased"}
    assert "no run of 1 got so far" in missed[0].params["reason"]
    assert verdict(rows) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cpu": [1.0]}, "at least 2 hosts"),
        ({"methods": ["locl-speed"]}, "did you mean 'local-speed'"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"target": 1.5}, "accuracy between 0 and 1"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes, said) -> None:
    given = {
        "case": "images", "cpu": [1.0, 0.5], "rate": "1gbit", "methods": [], "seeds": 1, "samples": 8, "batch": 2,
        "lr": 0.1, "steps": 2, "pool": 2.0, "seconds": 1.0, "epochs": 1.0, "target": 0.5,
    }  # fmt: skip
    with pytest.raises(UserError, match=said):
        run_local(**{**given, **changes}, launch=lambda *_: [0])
