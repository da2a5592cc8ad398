"""How evenly a division of rows among owners shares out the work of real index sets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from omnizen.codecs.ownership import Ownership, Partition
from omnizen.types import Imbalance


def owner_counts(rows: Tensor, partition: Partition, num_rows: int, n: int) -> Tensor:
    """Return how many of the rows each of n owners has, ``[n]`` int64."""
    return torch.bincount(Ownership(partition, num_rows, n).owner(rows), minlength=n)


def imbalance(pushed: Tensor, union: Sequence[float]) -> Imbalance:
    """Return how far the busiest rank is above an even share of pushing rows to owners and pulling their sums.

    Args:
        pushed: ``[n, n]`` rows of each rank that belong to each owner.
        union: ``[n]`` rows of the union that belong to each owner.

    Example:
        >>> imbalance(torch.tensor([[2, 0], [2, 0]]), [2, 0])  # rank 0 owns all rows, and sends none but the sum
        Imbalance(rx=1.0, tx=1.0)
    """
    n, counts = len(union), pushed.double()
    even = (n - 1) / n * (float(counts.sum()) / n + sum(union))
    if not even:
        return Imbalance()
    kept = counts.diagonal()
    sums = torch.tensor(union, dtype=torch.float64, device=counts.device)
    rx = counts.sum(0) - kept + sums.sum() - sums
    tx = counts.sum(1) - kept + (n - 1) * sums
    return Imbalance(rx=float(rx.max()) / even, tx=float(tx.max()) / even)
