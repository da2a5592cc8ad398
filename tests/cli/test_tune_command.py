"""``omnizen tune`` alone: from a user's function to a plan, once more, and what is refused."""

import signal

import pytest

from omnizen.errors import UserError
from omnizen.plan.plan import Plan
from tests.cli.test_measure_and_plan import options, run

SUBJECT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def small():
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()
    return nn.Linear(4, 1), {8: [data[:8]]}, loss, lambda m: torch.optim.SGD(m.parameters(), lr=0.05), loader
"""


def test_the_options_are_frozen():
    assert {name: str(default) for name, default in options("tune").items() if name != "model"} == {
        "--out/-o": "tuned",
        "--search": "halving",
        "--probe": "None",
        "--horizon": "3600.0",
        "--overhead": "0.1",
        "--train/--no-train": "False",
        "--budget": "10.0",
        "--save-every": "300.0",
        "--seed": "0",
        "--timeout": "60.0",
    }


def test_one_machine_alone_tunes_and_plans(tmp_path, monkeypatch):
    (tmp_path / "cli_tuned.py").write_text(SUBJECT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    handler = signal.getsignal(signal.SIGINT)
    words = ("tune", "cli_tuned:small", "--horizon", "6", "--budget", "0.2")
    first = run(*words)
    assert first.exit_code == 0, first.output
    assert "of the run that it is for; the bound is 10%" in first.output
    assert "sets the momentum, the step size is your optimizer's" in " ".join(first.output.split())
    plan = Plan.load("tuned/plan.toml")
    assert plan.execution.lr in (0.5, 0.05, 0.005)
    again = run(*words)
    assert "reused: same model, workers and torch" in again.output
    assert Plan.load("tuned/plan.toml") == plan
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(UserError, match="holds a search with search halving, not grid"):
        raise run(*words, "--search", "grid").exception


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("cli_tuned:small", "--search", "modle"), "did you mean 'model'"),
        (("cli_tuned",), "MODULE:FUNCTION"),
        (("cli_tuned:smal",), "did you mean 'small'"),
        (("cli_tuned:small", "--overhead", "2"), "between 0 and 1"),
    ],
)
def test_what_is_refused(tmp_path, monkeypatch, words, says):
    (tmp_path / "cli_tuned.py").write_text(SUBJECT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=says):
        raise run("tune", *words).exception
