"""What LARS and LAMB share: a step size for each layer, from the norms of its weights and of its update."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from omnizen.errors import UserError
from omnizen.optim.norms import norms
from omnizen.protocols import Comm


class Layerwise(Optimizer):
    """Scale each layer's update by a ratio of norms; vectors (biases, norms' weights) take the plain step.

    Args:
        comm: ranks that share the norms out, for models that are equal on them; a group of its own, such as
            ``run.gradients.sub(range(run.size), "norms")``. Every rank computes all norms when None.
    """

    def __init__(self, params: Any, defaults: dict[str, Any], comm: Comm | None) -> None:
        for name, value in defaults.items():
            for number in value if isinstance(value, tuple) else (value,):
                if not isinstance(number, int | float) or not 0.0 <= number < float("inf"):
                    raise UserError(f"{type(self).__name__}: {name} must be 0 or more, got {value!r}")
        super().__init__(params, defaults)
        self.comm = comm

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; the same call on all ranks when norms are shared out."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        layers = list(self._with_gradients())
        updates = [self._update(param, group) for param, group in layers]
        scaled = [i for i, (param, _) in enumerate(layers) if param.dim() > 1]
        asked = [layers[i][0] for i in scaled] + [updates[i] for i in scaled]
        found = norms(asked, self.comm).tolist()
        ratios = dict(zip(scaled, zip(found, found[len(scaled) :], strict=False), strict=True))
        for i, ((param, group), update) in enumerate(zip(layers, updates, strict=True)):
            self._apply(param, group, update, ratios.get(i))
        return loss

    def _with_gradients(self) -> Iterable[tuple[Tensor, dict[str, Any]]]:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                if param.grad.is_sparse or param.is_complex():
                    raise UserError(
                        f"{type(self).__name__} takes dense real gradients; give tables with sparse ones an "
                        "optimizer of their own"
                    )
                yield param, group

    def _update(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        """Return what the norm is taken of."""
        raise NotImplementedError

    def _apply(
        self, param: Tensor, group: dict[str, Any], update: Tensor, found: tuple[float, float] | None
    ) -> None:
        """Change the weights; ``found`` holds the norms of weights and update, None for a vector."""
        raise NotImplementedError
