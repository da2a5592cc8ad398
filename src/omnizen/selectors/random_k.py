"""Elements drawn at random, the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.selectors.drawn import Drawn
from omnizen.selectors.given import checked_density, num_kept
from omnizen.types import Step

PERMUTED_FROM = 0.1
"""Density from which shuffling all elements is cheaper than drawing until enough are distinct."""


@dataclass(frozen=True, slots=True)
class RandomK(Drawn):
    """Keep ``k = max(1, round(density numel))`` elements drawn from the shared seed, without a look at the values.

    Saves the search, and the indices on the wire: all ranks draw the same elements, so values can be all-reduced.
    Costs the large ones among the others: needs error feedback, or the rescaling by ``numel / k`` that makes it
    unbiased. A value that is not finite is seen only if it is drawn.

    Args:
        density: fraction of elements to keep, in (0, 1].
        unbiased: whether kept values are multiplied by ``numel / k``.

    Reference: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.

    Example:
        >>> kept = random_k(0.5).select(torch.arange(4.0), Step(0)); kept.indices.numel()
        2
    """

    density: float = 0.01
    unbiased: bool = False
    name: ClassVar[str] = "random-k"

    def support(self, numel: int, step: Step) -> Tensor:
        """Return the drawn elements, ascending; equal on all ranks."""
        k = num_kept(self.density, numel)
        rng = step.shared_rng()
        if k >= PERMUTED_FROM * numel:
            return torch.randperm(numel, generator=rng)[:k].sort().values
        drawn = torch.randint(numel, (k,), generator=rng).unique()
        while drawn.numel() < k:
            drawn = torch.cat([drawn, torch.randint(numel, (k,), generator=rng)]).unique()
        surplus = torch.randperm(drawn.numel(), generator=rng)[: drawn.numel() - k]
        kept = torch.ones(drawn.numel(), dtype=torch.bool)
        kept[surplus] = False
        return drawn[kept]


def random_k(density: float = 0.01, unbiased: bool = False) -> RandomK:
    """Make the selector of random elements; see ``RandomK``."""
    return RandomK(checked_density(density, "random-k"), bool(unbiased))
