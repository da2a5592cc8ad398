"""Synchronous data parallelism: every rank's gradient in every step."""

from __future__ import annotations

from omnizen.strategies.strategy import Strategy


def sync(reducer: str = "auto") -> Strategy:
    """Average gradients in every step; the result is that of one process on the union batch.

    Saves no bytes by itself; the reducer does. Costs a wait for the slowest rank in each step.

    Example:
        >>> sync("zen-coo").share
        'grad'
    """
    return Strategy(share="grad", reducer=reducer)
