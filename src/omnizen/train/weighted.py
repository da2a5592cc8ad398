"""Gradients that count unlike on unlike ranks, until a switch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from omnizen.errors import UserError
from omnizen.train.driver import InStep

if TYPE_CHECKING:
    from omnizen.strategies.strategy import Strategy
    from omnizen.train.run import Run


class WeightedGradients(InStep):
    """Drives ``strategies.per_shard_steps``; averages are equal on all ranks, so all switch at the same step."""

    def __init__(self, strategy: Strategy, run: Run) -> None:
        self.strategy, self._run = strategy, run
        self.switched = False
        """Whether all ranks count alike from now on."""
        self._run.weight_factor = strategy.weights[run.rank]

    def before_step(self, optimizer: Optimizer) -> None:
        """Look whether the average got small; the step under way still is a weighted one."""
        if not self.switched and optimizer is self._run.optimizers[0] and self.strategy.until_norm > 0:
            self._switch(float(_norm(self._run.model)) <= self.strategy.until_norm)

    def after_step(self) -> None:
        """Look whether it is time."""
        self._switch(0 < self.strategy.until_step <= self._run.step)

    def flush(self) -> None:
        """Do nothing: weights are equal after every step."""

    def close(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return whether all ranks count alike by now."""
        return {"switched": self.switched}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.switched = state.get("switched", False)
        self._run.weight_factor = 1.0 if self.switched else self.strategy.weights[self._run.rank]

    def _switch(self, now: bool) -> None:
        if now and not self.switched:
            self.switched, self._run.weight_factor = True, 1.0


def _norm(model: torch.nn.Module) -> Tensor:
    norms = [torch.linalg.vector_norm(_values(p.grad)).cpu() for p in model.parameters() if p.grad is not None]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def check_weighted(strategy: Strategy, ranks: int, reduction: str) -> None:
    """Refuse weights that cannot work.

    Raises:
        UserError: says what is in the way.
    """
    if len(strategy.weights) != ranks:
        raise UserError(
            f"per_shard_steps was given the smoothness of {len(strategy.weights)} shards, and there are {ranks} "
            "ranks"
        )
    if reduction != "mean":
        raise UserError("per_shard_steps weighs averages; it goes with reduction='mean' only")
