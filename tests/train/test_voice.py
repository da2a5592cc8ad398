"""The one line that a run says when its plan comes into force."""

import logging

import pytest
import torch
from torch import nn

from omnizen.plan.explain import in_brief
from omnizen.plan.plan import Plan, Prediction, TensorPlan
from omnizen.strategies import groups, local_sgd
from omnizen.train import voice
from tests.train.helpers import on_ranks


def plan(sparse: int) -> Plan:
    tensors = [
        TensorPlan(name=f"table{n}.weight", kind="row-sparse", scheme="zen-coo", predicted_s=0.1, rx_bytes=1.0)
        for n in range(sparse)
    ]
    tensors += [
        TensorPlan(name=f"w{n}", kind="dense", scheme="dense", predicted_s=0.1, rx_bytes=1.0) for n in (0, 1)
    ]
    expected = Prediction(step_s=1.57, compute_s=1.2, exposed_comm_s=0.3, comm_s=0.4, rx_bytes_per_step=1e6)
    return Plan(world_size=2, torch_version="2.13.0", tensors=tensors, prediction=expected)


def test_a_plan_in_one_line():
    text = "table0.weight by zen-coo, 2 dense gradients by dense; predicted 1.57 s a step, 1.20 s of it compute"
    assert in_brief(plan(1)) == text
    assert in_brief(plan(5)).startswith("5 sparse gradients by zen-coo, 2 dense gradients by dense; ")
    assert "\n" not in in_brief(plan(5))
    assert f"{plan(1)}" == text


@pytest.fixture
def unheard(monkeypatch):
    """A program that has not set logging up; pytest has."""
    log = logging.getLogger("omnizen-unheard")
    monkeypatch.setattr(log, "propagate", False)
    monkeypatch.setattr(voice, "LOG", log)
    return log


def test_it_goes_to_standard_error_until_it_is_silenced(unheard, capsys, monkeypatch):
    monkeypatch.setattr(unheard, "handlers", [])  # pytest has put its own there
    voice.plan_in_force(plan(1), 4, None)
    said = capsys.readouterr().err
    assert said.startswith("omnizen: plan in force from step 4: table0.weight by zen-coo")
    assert said.count("\n") == 1
    assert "run.plan" in said
    unheard.setLevel("WARNING")
    voice.plan_in_force(plan(1), 4, None)
    unheard.setLevel("NOTSET")
    unheard.disabled = True
    voice.plan_in_force(plan(1), 4, None)
    assert capsys.readouterr().err == ""


def test_it_goes_where_the_programs_logging_goes(caplog, capsys, tmp_path):
    with caplog.at_level(logging.INFO, logger="omnizen"):
        voice.plan_in_force(plan(1), 4, tmp_path)
    assert [record.name for record in caplog.records] == ["omnizen"]
    assert f"omnizen report {tmp_path}" in caplog.text
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("dense", "2 of 2 gradients in dense buckets"),
        ("topk", "1 of 2 gradients by topk, 1 of 2 gradients in dense buckets"),
        (groups([[0, 1], [2]]), "2 compute groups of ranks 0, 1; 2, 2 of 2 gradients in dense buckets"),
        (local_sgd([4, 2, 1]), "local steps ([4, 2, 1] between two averages of parameters)"),
        (
            local_sgd(8, share="delta", reducer="sbc"),
            "local steps (8 between two averages of differences through sbc)",
        ),
    ],
)
def test_what_is_asked_for_by_name_is_said_once(asked, said, caplog):
    def body(run):
        model = nn.Linear(50, 40)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), plan=asked)

    with caplog.at_level(logging.INFO, logger="omnizen"):
        on_ranks(3, body)
    lines = [record.getMessage() for record in caplog.records if record.name == "omnizen"]
    assert lines == [f"in force as asked for: {said}"]
