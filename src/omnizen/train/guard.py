"""Before an optimizer steps: are its gradients the ones that all ranks have?"""

from __future__ import annotations

import weakref

from torch import Tensor, nn
from torch.optim import Optimizer

from omnizen.errors import UserError


def holds_any(grad: Tensor) -> bool:
    """Return whether a gradient, sparse or not, has an element that is not zero."""
    return bool((grad._values() if grad.is_sparse else grad).count_nonzero())


class StepGuard:
    """Notices optimizer steps with gradients that were never averaged; costs about a microsecond a parameter.

    Args:
        model: the prepared model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._params = list(model.parameters())  # keeps the ids
        self.piled_up = False
        """Whether gradients piled up under ``no_sync`` since the last synchronised backward."""
        self._rounds = 0
        self._rounds_at_step: dict[int, int] = {}
        self._averaged: dict[int, weakref.ref[Tensor]] = {}

    def synchronised(self) -> None:
        """Note that all gradients are averages now."""
        self.piled_up = False
        self._rounds += 1
        self._averaged = {id(p): weakref.ref(p.grad) for p in self._params if p.grad is not None}

    def check(self, optimizer: Optimizer) -> None:
        """Refuse a step that would make the ranks differ.

        Raises:
            UserError: says which gradients were not averaged, and what to do.
        """
        if self.piled_up:
            raise UserError(
                "optimizer.step() after backward passes under run.no_sync() only: their gradients are this rank's "
                "own; leave the last backward of a step outside run.no_sync()"
            )
        fresh = self._rounds != self._rounds_at_step.get(id(optimizer), 0)
        self._rounds_at_step[id(optimizer)] = self._rounds
        for param in (p for group in optimizer.param_groups for p in group["params"]):
            if id(param) not in self._names:
                raise UserError(
                    f"{type(optimizer).__name__} holds a parameter of shape {list(param.shape)} that was not in "
                    "the model at run.prepare(), so its gradient is this rank's own; add parameters before "
                    "run.prepare()"
                )
            averaged = self._averaged.get(id(param))
            own = param.grad is not None and (averaged is None or averaged() is not param.grad)
            if not fresh and own and holds_any(param.grad):  # zeros are set to make an optimizer's state
                raise UserError(
                    f"{self._names[id(param)]}.grad is this rank's own: it was set since the last optimizer.step() "
                    "without a loss.backward() that averages it (torch.autograd.grad does not); use loss.backward()"
                )
