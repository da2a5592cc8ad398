"""Step size and momentum of whatever optimizer the user brought."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from omnizen.errors import UserError


def set_hyper(optimizers: Sequence[Optimizer], lr: float | None, momentum: float | None) -> None:
    """Set them in all parameter groups; momentum of Adam and its like is their first beta.

    Raises:
        UserError: a number that is none, or an optimizer without momentum.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.ones(1)], lr=1.0)
        >>> set_hyper([optimizer], 0.5, -0.2)
        >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]
        (0.5, -0.2)
    """
    for name, value, least in (("lr", lr, 0.0), ("momentum", momentum, -1.0)):
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and (not number or value < least or (name == "momentum" and value >= 1)):
            allowed = "a number of 0 or more" if name == "lr" else "a number in [-1, 1)"
            raise UserError(f"{name}: {allowed}, got {value!r}")
    if momentum is not None:
        check_momentum(optimizers)
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        if lr is not None:
            group["lr"] = lr
        if momentum is not None and "momentum" in group:
            group["momentum"] = momentum
        elif momentum is not None:
            group["betas"] = (momentum, *group["betas"][1:])


def mixed_rates(optimizers: Sequence[Optimizer]) -> float:
    """Return one number that differs where learning rates do; asks no accelerator, whose answer would take long.

    Example:
        >>> import torch
        >>> mixed_rates([torch.optim.SGD([torch.ones(1)], lr=0.5)])
        0.5
    """
    mixed = 0.0
    for place, group in enumerate(group for optimizer in optimizers for group in optimizer.param_groups):
        rate = group.get("lr", 0.0)
        if not isinstance(rate, Tensor) or rate.device.type == "cpu":
            mixed += (place + 1) * float(rate)
    return mixed if math.isfinite(mixed) else 0.0


def check_momentum(optimizers: Sequence[Optimizer]) -> None:
    """Refuse to set the momentum of an optimizer that has none.

    Raises:
        UserError: names it.
    """
    for optimizer in optimizers:
        if any("momentum" not in group and "betas" not in group for group in optimizer.param_groups):
            raise UserError(
                f"momentum: {type(optimizer).__name__} has none; leave it out (of a plan's [execution] too)"
            )


def momentum_of(optimizers: Sequence[Optimizer]) -> list[float]:
    """Return the distinct momenta of all parameter groups, in rising order."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return sorted({float(group["momentum"] if "momentum" in group else group["betas"][0]) for group in groups})
