"""The largest elements, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.selectors.given import checked_density, checked_flat, chosen, num_kept
from omnizen.types import Sparse, Step


@dataclass(frozen=True, slots=True)
class TopK:
    """Keep the ``k = max(1, round(density numel))`` elements of largest magnitude; of equal ones the first.

    The smallest error that k elements can leave. Saves all other elements; costs a search for the k-th largest.
    NaN and infinity count as largest and are all kept, so more than k come only when more than k are not finite.

    Args:
        density: fraction of elements to keep, in (0, 1].

    Reference: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.

    Example:
        >>> top_k(0.5).select(torch.tensor([1.0, -3.0, 2.0, 0.0]), Step(0)).indices
        tensor([1, 2])
    """

    density: float = 0.01
    name: ClassVar[str] = "top-k"
    unbiased: ClassVar[bool] = False

    def select(self, flat: Tensor, step: Step) -> Sparse:
        """Return the largest elements."""
        del step  # the same in every step
        flat = checked_flat(flat, self.name)
        return chosen(flat, largest(flat, num_kept(self.density, flat.numel())))

    def keeps(self, numel: int) -> tuple[int, int]:
        """Return k, twice."""
        k = num_kept(self.density, numel)
        return k, k


def largest(flat: Tensor, k: int) -> Tensor:
    """Return ascending indices of the k elements of largest magnitude, or of all that are not finite if more."""
    if k == flat.numel():
        return torch.arange(k, device=flat.device)
    size = flat.abs().nan_to_num_(float("inf"), float("inf"))
    least = size.topk(k, sorted=False).values.min()
    above = size > least
    equal = (size == least).nonzero().view(-1)
    above[equal if torch.isinf(least) else equal[: k - int(above.sum())]] = True
    return above.nonzero().view(-1)


def top_k(density: float = 0.01) -> TopK:
    """Make the exact selector; see ``TopK``."""
    return TopK(checked_density(density, "top-k"))
