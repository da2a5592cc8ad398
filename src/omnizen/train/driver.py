"""What a strategy does around the user's optimizer steps, when it is not the plain average of every gradient."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from torch.optim import Optimizer

from omnizen.strategies.groups import ranks_of

if TYPE_CHECKING:
    from omnizen.strategies.strategy import Strategy
    from omnizen.train.run import Run


class Driver(Protocol):
    """Moves weights or gradients between ranks where a strategy says so; made by ``driver_of``.

    What it sends goes through ``engine.call``, so that its order is the same on all ranks and every wait ends.
    """

    def before_step(self, optimizer: Optimizer) -> None:
        """Be told that an optimizer is about to step; may take its gradients away (set ``.grad`` to None)."""
        ...

    def after_step(self) -> None:
        """Be told that the first optimizer has stepped."""
        ...

    def flush(self) -> None:
        """Give all ranks the newest weights, the same everywhere; called by all ranks between steps.

        Evaluation, checkpoints and the end of a run need it.
        """
        ...

    def close(self) -> None:
        """Let go of threads and comms; calling it twice is harmless."""
        ...

    def staleness(self) -> dict[int, int]:
        """Return how often contributions were so many versions old."""
        ...

    def check_save(self) -> None:
        """Refuse to write a checkpoint that could not be complete; raises ``UserError`` on all ranks."""
        ...

    def attached(self) -> AbstractContextManager[None]:
        """Let the user's optimizers hold all their state, on one rank that writes it into a checkpoint."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank has of its own, in types that ``torch.load(weights_only=True)`` admits."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` returned; weights and optimizers were restored before."""
        ...


class InStep:
    """What all strategies answer alike under which no rank goes on without the others."""

    def staleness(self) -> dict[int, int]:
        """Return nothing: all ranks average at once."""
        return {}

    def check_save(self) -> None:
        """Do nothing: all ranks are there, or none goes on."""

    def attached(self) -> AbstractContextManager[None]:
        """Do nothing: every rank's optimizer holds its own state."""
        return nullcontext()


class EveryStep(InStep):
    """Gradients are averaged in every backward pass, so there is nothing left to do around a step."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Do nothing."""

    def after_step(self) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing: weights are equal after every step."""

    def close(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take nothing."""


def driver_of(strategy: Strategy, run: Run) -> Driver:
    """Return what drives a strategy; called by all ranks when the run's engine is there."""
    if strategy.share != "grad":
        from omnizen.train.local import LocalSteps

        return LocalSteps(strategy, run)
    groups = ranks_of(strategy.groups, run.size)
    if len(groups) > 1:
        from omnizen.train.groups.driver import Groups

        return Groups(run, groups)
    if strategy.weights:
        from omnizen.train.weighted import WeightedGradients

        return WeightedGradients(strategy, run)
    return EveryStep()
