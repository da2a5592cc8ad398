"""The largest elements, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from omnizen.kernels.largest import largest
from omnizen.selectors.given import checked_density, checked_flat, num_kept, sparse
from omnizen.types import Sparse, Step


@dataclass(frozen=True, slots=True)
class TopK:
    """Keep the ``k = max(1, round(density numel))`` elements of largest magnitude; of equal ones the first.

    The smallest error that k elements can leave. Saves all other elements; costs a search for the k-th largest.
    NaN and infinity count as largest and are all kept, so more than k come only when more than k are not finite;
    zeros are never sent, so fewer come when fewer are not zero.

    Args:
        density: fraction of elements to keep, in (0, 1].

    Reference: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.

    Example:
        >>> import torch
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
        return sparse(flat, *largest(flat, num_kept(self.density, flat.numel())))

    def keeps(self, numel: int) -> tuple[int, int]:
        """Return k, twice."""
        k = num_kept(self.density, numel)
        return k, k


def top_k(density: float = 0.01) -> TopK:
    """Make the exact selector; see ``TopK``."""
    return TopK(checked_density(density, "top-k"))
