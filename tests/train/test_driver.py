"""When a strategy's driver is told what."""

from __future__ import annotations

import torch
from torch import nn

from omnizen.errors import UserError
from omnizen.train.driver import InStep
from omnizen.train.run import Run
from tests.train.helpers import on_ranks


class Told(InStep):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.heard.append(f"before {type(optimizer).__name__}")

    def after_step(self) -> None:
        self.heard.append("after")

    def flush(self) -> None:
        self.heard.append("flush")

    def close(self) -> None:
        self.heard.append("close")

    def state_dict(self) -> dict[str, int]:
        return {"heard": len(self.heard)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.heard.append(f"load {state}")


def test_a_driver_hears_of_steps_flushes_checkpoints_and_the_end(tmp_path) -> None:
    told: dict[int, list[str]] = {}

    def body(run: Run) -> None:
        model = nn.Linear(2, 1)
        one, two = torch.optim.SGD([model.weight], lr=0.1), torch.optim.Adam([model.bias], lr=0.1)
        run.prepare(model, [one, two], plan="dense")
        run.driver = driver = Told()
        told[run.rank] = driver.heard
        model(torch.ones(1, 2)).sum().backward()
        two.step()
        one.step()
        run.save(tmp_path / "here")
        run.load(tmp_path / "here")

    on_ranks(2, body)
    expected = ["before Adam", "before SGD", "after", "flush", "load {'heard': 4}", "flush", "close"]
    assert told == {0: expected, 1: expected}


def test_a_driver_is_closed_after_an_error() -> None:
    closed: list[str] = []

    def body(run: Run) -> None:
        model = nn.Linear(2, 1)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="dense")
        run.driver = driver = Told()
        try:
            with run:
                raise UserError("stop")
        except UserError:
            closed.extend(driver.heard)

    on_ranks(1, body)
    assert closed == ["close"]
