"""What a trainer of stretches needs to be given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from omnizen.plan.tuner.actions import Point

Weights = dict[str, Tensor]
"""A model's ``state_dict``."""


class Task(Protocol):
    """What is trained, on what data; one object for each rank."""

    divisible: bool
    """Whether ``batches`` makes batches of any size."""

    def make_model(self) -> nn.Module:
        """Return a model of its own for one stretch."""
        ...

    def make_optimizer(self, model: nn.Module, point: Point) -> Optimizer:
        """Return an optimizer for it; step size and momentum are set afterwards."""
        ...

    def batches(self, samples: int) -> Iterator[Any]:
        """Return batches without end, each of so many samples; goes on where the one before stopped."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of a batch, a scalar."""
        ...
