"""The survey's grid on a toy task."""

import itertools

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from omnizen.bench import survey
from omnizen.bench.curves.tasks import Task
from omnizen.cli.main import app
from omnizen.errors import UserError


def toy():
    rng = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (200,), generator=rng)
    centers = torch.randn(3, 60, generator=rng)
    inputs = centers[targets] + torch.randn(200, 60, generator=rng)
    make = lambda: nn.Sequential(nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 3))  # noqa: E731
    return Task(name="toy", make=make, inputs=inputs, targets=targets, test=(inputs[:50], targets[:50]))


def test_every_cell_is_trained_and_predicted(monkeypatch):
    kept = [("all-reduce", "none"), ("all-reduce", "quantisation"), ("owners", "none")]
    some = {key: survey.SCHEMES[key] for key in kept}
    monkeypatch.setattr(survey, "SCHEMES", some)
    settings = survey.Settings(steps=16, seeds=1, lrs=(0.05,), rates_mbit=(1.0, 1e6), repeats=1)
    rows = survey.run_survey(toy(), settings)
    cells = [f"{s}, {a}, {c}" for (a, c), s in itertools.product(some, survey.SYNCHRONISATION)]
    losses = {r.method: r for r in rows if r.metric == "test_loss"}
    assert sorted(losses) == sorted(cells)
    assert all(r.value < r.params["first_loss"] for r in losses.values())  # all of them learn
    nbytes = {r.method: r.value for r in rows if r.metric == "rx_bytes_per_step"}
    assert nbytes["local, all-reduce, none"] < 0.3 * nbytes["bulk, all-reduce, none"]
    assert nbytes["bulk, owners, none"] < 0.95 * nbytes["bulk, all-reduce, none"]
    steps = {(r.method, r.rate_mbit): r.value for r in rows if r.metric == "predicted_step_s"}
    assert len(steps) == len(cells) * len(survey.SCHEDULING) * 2
    plain = "bulk, all-reduce, none"
    assert steps[f"{plain}, in buckets", 1.0] <= steps[f"{plain}, after backward", 1.0]
    assert steps[f"{plain}, in buckets", 1e6] < steps[f"{plain}, by tensor", 1e6]  # fewer messages
    assert steps["local, all-reduce, none, in buckets", 1.0] < steps[f"{plain}, in buckets", 1.0]
    assert survey.table(rows).row_count == len(cells)


def test_quick_is_less():
    assert survey.quick(survey.Settings()).steps < survey.Settings().steps


@pytest.mark.parametrize(("arguments", "says"), [
    (["--steps", "0"], "steps must be at least 1"), (["--rate", ","], "no bandwidth"),
    (["--case", "txt"], "did you mean 'text'"),
])  # fmt: skip
def test_bad_input_is_one_clear_error(arguments, says):
    result = CliRunner().invoke(app, ["bench", "survey", *arguments])
    assert isinstance(result.exception, UserError), result.output
    assert says in str(result.exception)
