"""All elements from a fixed magnitude on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from omnizen.kernels.compaction import all_from
from omnizen.selectors.given import checked_density, checked_flat, checked_positive, sparse
from omnizen.types import Sparse, Step


@dataclass(frozen=True, slots=True)
class Threshold:
    """Keep every element of at least a given magnitude: one pass, and no say over how many those are.

    Saves the search for a threshold; costs a tuned number that fits no later phase of training. NaN is kept.

    Args:
        least: smallest magnitude that is kept, above 0, in the unit of the gradient.
        density: fraction that is expected to be kept; for predictions only.

    Reference: Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech 2015.

    Example:
        >>> import torch
        >>> threshold(2.0).select(torch.tensor([1.0, -3.0, 2.0, 0.0]), Step(0)).indices
        tensor([1, 2])
    """

    least: float = 0.01
    density: float = 0.01
    name: ClassVar[str] = "threshold"
    unbiased: ClassVar[bool] = False

    def select(self, flat: Tensor, step: Step) -> Sparse:
        """Return the elements from the threshold on."""
        del step  # the same in every step
        flat = checked_flat(flat, self.name)
        return sparse(flat, *all_from(flat, self.least, self.density * flat.numel()))

    def keeps(self, numel: int) -> tuple[int, int]:
        """Return nothing and everything: it depends on the values."""
        return 0, numel


def threshold(least: float = 0.01, density: float = 0.01) -> Threshold:
    """Make the selector by a fixed magnitude; see ``Threshold``."""
    return Threshold(checked_positive(least, "least", "threshold"), checked_density(density, "threshold"))
