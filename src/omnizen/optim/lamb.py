"""LAMB: Adam whose step in each layer is a fraction of the layer's weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from omnizen.optim.layerwise import Layerwise
from omnizen.protocols import Comm


class Lamb(Layerwise):
    """Layer-wise Adam: ``u = m^ / (sqrt(v^) + eps) + wd w``, ``w <- w - lr (|w| / |u|) u``; 1 where a norm is zero.

    Lets large batches train language models in few steps; costs Adam's memory and two norms a layer, which ranks
    can share out.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        betas: of the running means of gradients and of their squares.
        eps: keeps the division finite.
        weight_decay: ``wd``.
        comm: see ``Layerwise``.

    Reference: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        comm: Comm | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, comm)

    def _update(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        state, (beta1, beta2) = self.state[param], group["betas"]
        if not state:
            state["step"] = 0
            state["mean"], state["square"] = torch.zeros_like(param), torch.zeros_like(param)
        state["step"] += 1
        grad = param.grad
        assert grad is not None
        mean = state["mean"].mul_(beta1).add_(grad, alpha=1 - beta1) / (1 - beta1 ** state["step"])
        square = state["square"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2) / (1 - beta2 ** state["step"])
        update: Tensor = mean.div_(square.sqrt_().add_(group["eps"])).add_(param, alpha=group["weight_decay"])
        return update

    def _apply(
        self, param: Tensor, group: dict[str, Any], update: Tensor, found: tuple[float, float] | None
    ) -> None:
        scaled = found is not None and found[0] > 0 and found[1] > 0
        ratio = found[0] / found[1] if found is not None and scaled else 1.0
        param.sub_(update, alpha=group["lr"] * ratio)
