"""Per-shard step sizes: data that bends the loss little takes larger steps, until gradients get small."""

from __future__ import annotations

from collections.abc import Sequence

from omnizen.errors import UserError
from omnizen.strategies.strategy import Strategy


def per_shard_steps(
    smoothness: Sequence[float], *, until_norm: float = 0.0, until_step: int = 0, reducer: str = "auto"
) -> Strategy:
    """Weigh each rank's gradient by ``1/L_i`` over the mean of these, then, from a switch on, all alike.

    With the optimizer's step size at the mean of ``1/L_i`` this is the published rule; weights keep that mean, so
    any other step size can be used, too. Unequal weights go to another point than the minimum of the whole loss,
    hence the switch. Saves no bytes. The published rule also takes larger steps than the one it was
    compared with; ``omnizen bench shards`` shows it beside a tuned common step size.

    Args:
        smoothness: ``L_i`` of each rank's data, all above 0 (``omnizen.measure.smoothness``); only for ranks that
            keep their data, not for a loader that deals samples out anew.
        until_norm: the switch comes when the weighted average's norm is at most this; 0 for never.
        until_step: the switch comes at this step at the latest; 0 for never.

    Raises:
        UserError: says which value is not allowed.

    Reference: Chen, Wang and Wang, "Accelerating Optimization and Machine Learning through Decentralization",
    arXiv:2604.19518.

    Example:
        >>> per_shard_steps([1.0, 3.0]).weights
        (1.5, 0.5)
    """
    given = tuple(smoothness)
    if not given:
        raise UserError("per_shard_steps: the smoothness of each rank's data, got none")
    fine = all(isinstance(each, int | float) and 0 < each < float("inf") for each in given)
    mean = sum(1 / each for each in given) / len(given) if fine else 1.0
    weights = tuple(1 / each / mean for each in given) if fine else given  # the row refuses what is left
    return Strategy(reducer=reducer, weights=weights, until_norm=until_norm, until_step=until_step)
