"""Clipping by the norm of all gradients, sparse ones included."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

from omnizen.train.rows import HALF


@torch.no_grad()
def clip_grad_norm_(
    parameters: Iterable[Parameter] | Parameter,
    max_norm: float,
    parts: Container[int] = (),
    add_up: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Scale gradients so that their common 2-norm is at most ``max_norm``; returns the norm before.

    Duplicate rows of a sparse gradient are summed first, so that the norm is that of the dense gradient.
    After a synchronised backward the gradients are the averages, so all ranks clip alike.

    Args:
        parts: ids of parameters of whose averages each rank has a part of its own.
        add_up: adds a number up over ranks; called when there are any.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(2)); p.grad = torch.tensor([3.0, 4.0])
        >>> float(clip_grad_norm_([p], 1.0))
        5.0
    """
    params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    values: list[Tensor] = []
    norms: list[Tensor] = []
    partial: list[Tensor] = []
    for param in params:
        if param.grad is None:
            continue
        if param.grad.is_sparse:
            param.grad = param.grad.coalesce()
        values.append(param.grad.values() if param.grad.is_sparse else param.grad)
        wide = values[-1].float() if values[-1].dtype in HALF else values[-1]
        (partial if id(param) in parts else norms).append(torch.linalg.vector_norm(wide).to(values[0].device))
    if parts and add_up is not None:
        squares = torch.stack([norm.double() ** 2 for norm in partial]).sum() if partial else torch.zeros(())
        norms.append(add_up(squares.double()).sqrt().to(squares.device))
    if not values:
        return torch.tensor(0.0)
    exact = torch.promote_types(torch.float32, norms[0].dtype)  # half of it would overflow
    for norm in norms:
        exact = torch.promote_types(exact, norm.dtype)
    norm = torch.linalg.vector_norm(torch.stack([n.to(exact) for n in norms]))
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for value in values:
        value.mul_(factor.to(value.device))
    return norm
