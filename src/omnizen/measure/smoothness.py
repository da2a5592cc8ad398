"""How sharply a loss bends: the smoothness L, with which a gradient step of 1/L surely goes down."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from omnizen.errors import UserError
from omnizen.protocols import Comm

Loss = Callable[[], Tensor]
"""Computes the loss of one shard at the parameters as they are."""


def by_power(
    loss: Loss, params: Sequence[Tensor], *, iterations: int = 20, generator: torch.Generator | None = None
) -> float:
    """Return the largest magnitude of an eigenvalue of the loss's Hessian at the parameters, by power iteration.

    Each iteration costs one backward pass through a backward pass. What it finds approaches the value from below;
    where the largest two magnitudes are near each other it needs more iterations.

    Args:
        params: of which the loss is a twice differentiable function.

    Raises:
        UserError: a number of iterations below 1.

    Example:
        >>> x = torch.tensor([1.0, 1.0], requires_grad=True)
        >>> round(by_power(lambda: (x**2 * torch.tensor([3.0, 0.5])).sum(), [x]), 3)
        6.0
    """
    if iterations < 1:
        raise UserError(f"iterations must be at least 1, got {iterations}")
    inputs = list(params)
    grads = torch.autograd.grad(loss(), inputs, create_graph=True)
    if not any(grad.requires_grad for grad in grads):  # a linear loss
        return 0.0
    vector = _unit([torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for p in inputs])
    largest = 0.0
    for _ in range(iterations):
        product = torch.autograd.grad(grads, inputs, vector, retain_graph=True, allow_unused=True)
        filled = [torch.zeros_like(p) if h is None else h.detach() for p, h in zip(inputs, product, strict=True)]
        largest = float(_norm(filled))
        if largest == 0.0:
            break
        vector = _unit(filled)
    return largest


def by_draws(
    loss: Loss,
    params: Sequence[Tensor],
    *,
    draws: int = 100,
    spread: float = 1.0,
    step: float = 1e-6,
    generator: torch.Generator | None = None,
) -> float:
    """Return the largest change of the gradient over a small step, relative to the step, at random parameters.

    As published: parameters are drawn anew each time (normal, with deviation ``spread``) and stepped from at random
    (deviation ``step``). One random direction hardly ever is the sharpest, so in many dimensions this is far too
    small; use float64, as it takes the difference of nearly equal gradients. The parameters come back unchanged.

    Raises:
        UserError: a number of draws below 1, or a spread or step that is not above 0.

    Reference: Chen, Wang and Wang, "Accelerating Optimization and Machine Learning through Decentralization",
    arXiv:2604.19518 (its code).
    """
    if draws < 1:
        raise UserError(f"draws must be at least 1, got {draws}")
    for name, value in (("spread", spread), ("step", step)):
        if not value > 0:
            raise UserError(f"{name} must be above 0, got {value!r}")
    inputs = list(params)
    kept = [p.detach().clone() for p in inputs]

    def drawn(deviation: float) -> list[Tensor]:
        return [torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) * deviation for p in inputs]

    def gradient_at(values: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            for p, value in zip(inputs, values, strict=True):
                p.copy_(value)
        return list(torch.autograd.grad(loss(), inputs))

    largest = 0.0
    try:
        for _ in range(draws):
            place, move = drawn(spread), drawn(step)
            here = gradient_at(place)
            there = gradient_at([a + b for a, b in zip(place, move, strict=True)])
            change = _norm([a - b for a, b in zip(here, there, strict=True)])
            largest = max(largest, float(change / _norm(move)))
    finally:
        with torch.no_grad():
            for p, old in zip(inputs, kept, strict=True):
                p.copy_(old)
    return largest


def of_all(own: float, comm: Comm) -> list[float]:
    """Return every rank's smoothness, for ``strategies.per_shard_steps`` (collective)."""
    row = torch.tensor([own], dtype=torch.float64, device=comm.device)
    return [float(parts[0]) for parts in ([[row]] if comm.size == 1 else comm.all_gather([row]).wait())]


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in tensors]))


def _unit(tensors: Sequence[Tensor]) -> list[Tensor]:
    length = _norm(tensors)
    return [t / length for t in tensors]
