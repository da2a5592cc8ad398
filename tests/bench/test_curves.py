"""Curves of lossy schemes: trained, kept and drawn; on made-up samples, since the real ones need a registry."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from omnizen import catalog
from omnizen.bench.curves import tasks
from omnizen.bench.curves.chart import write_chart
from omnizen.bench.curves.run import bytes_to, run_curves, verdict
from omnizen.bench.curves.settings import DETACHED, OWN_MOMENTUM, WITH, WITHOUT, names, settings_of
from omnizen.bench.curves.tasks import Task, load_task
from omnizen.bench.curves.train import Setting, train
from omnizen.bench.rows import append, read
from omnizen.cli.main import app
from omnizen.errors import UserError
from omnizen.strategies import local_sgd


def blobs() -> Task:
    rng = torch.Generator().manual_seed(0)
    centers = torch.randn(4, 60, generator=rng)
    targets = torch.randint(4, (600,), generator=rng)
    inputs = centers[targets] + torch.randn(600, 60, generator=rng)
    return Task(
        name="blobs",
        make=lambda: nn.Sequential(nn.Linear(60, 30), nn.ReLU(), nn.Linear(30, 4)),
        inputs=inputs[:500],
        targets=targets[:500],
        test=(inputs[500:], targets[500:]),
    )


def test_every_plan_of_a_curve_can_be_made():
    for name in names([]):
        for setting in settings_of(name):
            assert not isinstance(setting.plan, str) or catalog.reducer(setting.plan) is not None
            own = name in OWN_MOMENTUM or name in DETACHED
            assert (setting.momentum == 0) == own
    with pytest.raises(UserError, match="did you mean 'topk'"):
        names(["topkk"])


def test_a_run_is_tested_evenly_counts_bytes_and_learns():
    curve = train(blobs(), Setting(method="topk", plan="topk(density=0.1)", lr=0.05), steps=30, tests=4, seed=1)
    assert curve.steps == [0, 10, 20, 30]
    assert curve.losses[-1] < 0.5 * curve.losses[0]
    assert curve.accuracies[-1] > 0.8
    k, small = 180, 30 + 120 + 4  # the matrix of 1,800 is shortened
    flags, headers = 3 * 2 * 4, 3 * 8
    a_step = 3 * k * 8 + 2 * headers + flags + headers + 2 * 3 / 4 * 4 * (small + 3)
    assert curve.rx_bytes == pytest.approx([0, 10 * a_step, 20 * a_step, 30 * a_step])


def test_local_steps_are_tested_between_rounds_and_send_less():
    every = {n: Setting(method="x", plan=local_sgd(n, share="delta", reducer="sbc"), lr=0.02) for n in (1, 5)}
    one, five = (train(blobs(), setting, steps=30, tests=4, seed=1) for setting in every.values())
    assert one.steps == five.steps == [0, 10, 20, 30]
    assert five.rx_bytes[-1] < one.rx_bytes[-1] / 4
    assert five.losses[-1] < five.losses[0]


def test_bytes_of_tests_are_not_counted():
    plans = ["def-random-block(detached=0)", "def-random-block(detached=0.5)"]
    few, many = (
        train(blobs(), Setting(method="x", plan=plan, lr=0.01, momentum=0.0), steps=4, tests=3, seed=0)
        for plan in plans
    )
    assert few.rx_bytes == many.rx_bytes


@pytest.mark.parametrize("plan", ["dense", local_sgd(3, share="delta", reducer="sbc")], ids=["dense", "local"])
def test_a_run_that_diverges_ends(plan):
    curve = train(blobs(), Setting(method="x", plan=plan, lr=1e6), steps=30, tests=4, seed=0)
    assert curve.diverged
    assert curve.losses[-1] == 1e3
    assert len(curve.steps) < 4


def test_rows_have_the_best_step_size_and_all_seeds(tmp_path):
    rows = list(run_curves(blobs(), ["dense", "topk", "block 1/64 detached 0.3"], steps=8, tests=3, seeds=2))
    for row in rows:
        assert row.value is not None
        assert row.params["loss_by_lr"][f"{row.params['lr']:g}"] == min(row.params["loss_by_lr"].values())
        assert len(row.params["losses"]) == 2
        assert row.params["losses"][0] != row.params["losses"][1]
    append(tmp_path / "rows.jsonl", rows)
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])["bench"] == "curves"
    write_chart(read(tmp_path / "rows.jsonl"), tmp_path / "curves.html")
    page = (tmp_path / "curves.html").read_text(encoding="utf-8")
    assert "blobs: with error feedback" in page
    assert "block 1/64 detached 0.3" in page
    assert any("detached 0.3: loss" in line for line in verdict(rows))
    assert bytes_to(rows[0], 0.0) == 0.0
    assert bytes_to(rows[0], 1.1) is None


def test_the_command_draws_what_it_kept(tmp_path, monkeypatch):
    monkeypatch.setitem(tasks.TASKS, "images", blobs)
    out, page = tmp_path / "rows.jsonl", tmp_path / "page.html"
    words = [
        "bench",
        "curves",
        "--case",
        "images",
        "--curve",
        "dense",
        "--steps",
        "2",
        "--tests",
        "2",
        "--seeds",
        "1",
    ]
    result = CliRunner().invoke(app, [*words, "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "blobs: dense: loss" in result.output
    result = CliRunner().invoke(app, ["bench", "curves", "--draw", "--json", str(out), "--html", str(page)])
    assert result.exit_code == 0, result.output
    assert page.exists()
    with pytest.raises(UserError, match="did you mean 'images'"):
        load_task("image")


def test_every_lossy_scheme_is_drawn():
    drawn = " ".join([*WITH.values(), *WITHOUT.values(), *DETACHED.values()])
    for name in catalog.schemes("dense", lossy=True):
        assert not catalog.REDUCERS[name].lossy or name in drawn
