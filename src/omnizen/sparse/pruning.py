"""Pruning before or early in training: scores of weights, and masks of those with the best ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from omnizen.errors import UserError, nearest
from omnizen.sparse.masks import Masks

SCOPES = ("global", "layer")


def prunable(model: nn.Module) -> dict[str, Parameter]:
    """Return the trained weights that pruning may thin out: matrices and filters, no vectors and no embeddings."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    return {
        name: p
        for name, p in model.named_parameters()
        if p.requires_grad and p.dim() > 1 and p.is_floating_point() and id(p) not in tables
    }


def magnitude_scores(model: nn.Module) -> dict[str, Tensor]:
    """Score each weight by its magnitude ``|w|``.

    Reference: Han, Pool, Tran, Dally, "Learning both Weights and Connections for Efficient Neural Networks", 2015.
    """
    return {name: p.detach().abs() for name, p in prunable(model).items()}


def grasp_scores(model: nn.Module, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Score each weight by what gradient flow owes it: ``w (H g)``, g the gradient of the loss, H its Hessian.

    ``-w (H g)`` is, to first order, half of what removing the weight adds to ``|g|^2``; weights whose removal adds
    most go first. Costs two backward passes and their graph. PacTrain prunes by this score.

    Args:
        loss: computes the loss of the model on a batch; for GraSP's own form, of some examples of each class, with
            logits divided by 200.

    Reference: Wang, Zhang, Grosse, "Picking Winning Tickets Before Training by Preserving Gradient Flow",
        ICLR 2020.
    """
    params = prunable(model)
    weights = list(params.values())
    with torch.enable_grad():
        grads = torch.autograd.grad(loss(), weights, create_graph=True, allow_unused=True)
        flow = sum((g * g.detach()).sum() for g in grads if g is not None)
        if not isinstance(flow, Tensor) or not flow.requires_grad:
            raise UserError(
                "grasp_scores: the gradient of this loss does not depend on the weights (a linear model?)"
            )
        products = torch.autograd.grad(flow, weights, allow_unused=True)
    return {
        name: torch.zeros_like(p) if product is None else (p.detach() * product.detach())
        for (name, p), product in zip(params.items(), products, strict=True)
    }


def best(scores: Mapping[str, Tensor], density: float, scope: str = "global") -> Masks:
    """Keep the weights with the highest scores; of equal ones those that come first.

    Args:
        density: fraction to keep, in (0, 1].
        scope: "global" compares all weights, "layer" keeps the same fraction of each parameter.

    Raises:
        UserError: for a density or scope that there is not, or scores that are NaN.

    Example:
        >>> best({"w": torch.tensor([[3.0, 1.0, 2.0, 0.0]])}, 0.5).kept["w"].tolist()
        [[True, False, True, False]]
    """
    known = isinstance(density, int | float) and not isinstance(density, bool)
    if not known or not 0.0 < density <= 1.0:
        raise UserError(f"density is the fraction of weights to keep, in (0, 1], got {density!r}")
    if scope not in SCOPES:
        raise UserError(f"scope: {nearest(scope, SCOPES)}")
    for name, score in scores.items():
        if bool(torch.isnan(score).any()):
            raise UserError(f"the scores of {name} hold NaN; prune a model whose weights and gradients are finite")
    if scope == "layer":
        return Masks({name: _top(score.reshape(-1), density).view(score.shape) for name, score in scores.items()})
    flat = [score.reshape(-1).float() for score in scores.values()]
    kept = _top(torch.cat(flat), density).split([part.numel() for part in flat]) if flat else ()
    return Masks({name: mask.view(score.shape) for (name, score), mask in zip(scores.items(), kept, strict=True)})


def _top(flat: Tensor, density: float) -> Tensor:
    count = max(1, round(density * flat.numel()))
    kept = torch.zeros(flat.numel(), dtype=torch.bool, device=flat.device)
    kept[flat.sort(descending=True, stable=True).indices[:count]] = True
    return kept
