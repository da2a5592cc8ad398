"""LARS: momentum SGD whose step in each layer is a fraction of the layer's weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from omnizen.optim.layerwise import Layerwise
from omnizen.protocols import Comm


class Lars(Layerwise):
    """Layer-wise adaptive rate scaling: ``v <- m v + lr r (g + wd w)``, ``w <- w - v``.

    ``r = trust |w| / (|g| + wd |w|)``, 1 where a norm is zero. Lets large batches train at large rates; costs two
    norms a layer, which ranks can share out.

    Args:
        params: parameters or groups of them.
        lr: global learning rate.
        momentum: ``m``.
        weight_decay: ``wd``.
        trust: the paper's coefficient.
        comm: see ``Layerwise``.

    Reference: You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", arXiv:1708.03888.

    Example:
        >>> w = torch.nn.Parameter(torch.full((2, 2), 2.0)); w.grad = torch.ones(2, 2)
        >>> Lars([w], lr=1.0, momentum=0.0, trust=0.1).step(); w[0, 0].item()
        1.8
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        comm: Comm | None = None,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}, comm
        )

    def _update(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        del group  # the norm is that of the gradient alone
        assert param.grad is not None
        return param.grad

    def _apply(
        self, param: Tensor, group: dict[str, Any], update: Tensor, found: tuple[float, float] | None
    ) -> None:
        decay, ratio = group["weight_decay"], 1.0
        if found is not None and found[0] > 0 and found[1] > 0:
            ratio = group["trust"] * found[0] / (found[1] + decay * found[0])
        change = update.add(param, alpha=decay).mul_(group["lr"] * ratio)
        if group["momentum"]:
            state = self.state[param]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(param)
            change = state["momentum"].mul_(group["momentum"]).add_(change)
        param.sub_(change)
