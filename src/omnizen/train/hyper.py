"""Step size and momentum of whatever optimizer the user brought."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if lr is not None:
                group["lr"] = lr
            if momentum is None:
                continue
            if "momentum" in group:
                group["momentum"] = momentum
            elif "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            else:
                raise UserError(f"momentum: {type(optimizer).__name__} has none; leave it out")
