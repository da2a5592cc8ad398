"""Clipping by the norm of all gradients, sparse ones included."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

from omnizen.train.rows import HALF


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[Parameter] | Parameter, max_norm: float) -> Tensor:
    """Scale gradients so that their common 2-norm is at most ``max_norm``; returns the norm before.

    Duplicate rows of a sparse gradient are summed first, so that the norm is that of the dense gradient.
    After a synchronised backward the gradients are the averages, so all ranks clip alike.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(2)); p.grad = torch.tensor([3.0, 4.0])
        >>> float(clip_grad_norm_([p], 1.0))
        5.0
    """
    params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    values = []
    for param in params:
        if param.grad is None:
            continue
        if param.grad.is_sparse:
            param.grad = param.grad.coalesce()
        values.append(param.grad.values() if param.grad.is_sparse else param.grad)
    if not values:
        return torch.tensor(0.0)
    wide = [v.float() if v.dtype in HALF else v for v in values]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(w).to(values[0].device) for w in wide]))
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for value in values:
        value.mul_(factor.to(value.device, value.dtype))
    return norm
