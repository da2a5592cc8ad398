"""One block of neighbours, at a place drawn at random, the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.selectors.drawn import Drawn
from omnizen.selectors.given import checked_density, num_kept
from omnizen.types import Step


@dataclass(frozen=True, slots=True)
class RandomBlock(Drawn):
    """Keep ``k = max(1, round(density numel))`` neighbours from a shared random start on, around the end.

    Saves the search, and the indices on the wire; the cheapest choice there is: one number is drawn and memory is
    copied in one piece. Costs the large elements outside: needs error feedback, or the rescaling by ``numel / k``.
    Choose one block a tensor, not one a bucket, or most layers stand still in a step. A value that is not finite
    is seen only if the block holds it.

    Args:
        density: fraction of elements to keep, in (0, 1].
        unbiased: whether kept values are multiplied by ``numel / k``.

    Reference: Foroutan Eghlidi and Jaggi, "Sparse Communication for Training Deep Networks", 2020.

    Example:
        >>> kept = random_block(0.5).select(torch.arange(4.0), Step(0)).indices
        >>> int((kept.diff() != 1).sum()) <= 1
        True
    """

    density: float = 0.01
    unbiased: bool = False
    name: ClassVar[str] = "random-block"

    def support(self, numel: int, step: Step) -> Tensor:
        """Return the block's elements, ascending; equal on all ranks."""
        k = num_kept(self.density, numel)
        if not k:
            return torch.empty(0, dtype=torch.int64)
        start = int(torch.randint(numel, (), generator=step.shared_rng()))
        around = max(0, start + k - numel)
        return torch.cat([torch.arange(around), torch.arange(start, start + k - around)])


def random_block(density: float = 0.01, unbiased: bool = False) -> RandomBlock:
    """Make the selector of one random block; see ``RandomBlock``."""
    return RandomBlock(checked_density(density, "random-block"), bool(unbiased))
