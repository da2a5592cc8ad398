"""What selectors have in common whose elements are drawn without a look at the values, alike on all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from omnizen.selectors.given import checked_flat, chosen, num_kept
from omnizen.types import Sparse, Step


class Drawn(ABC):
    """Keeps ``k = max(1, round(density numel))`` elements that the shared seed decides.

    Args:
        density: fraction of elements to keep, in (0, 1].
        unbiased: whether kept values are multiplied by ``numel / k``.
    """

    __slots__ = ()
    name: ClassVar[str]
    density: float
    unbiased: bool

    @abstractmethod
    def support(self, numel: int, step: Step) -> Tensor:
        """Return the elements, ascending; equal on all ranks."""

    def select(self, flat: Tensor, step: Step) -> Sparse:
        """Return the drawn elements."""
        flat = checked_flat(flat, self.name)
        kept = chosen(flat, self.support(flat.numel(), step).to(flat.device))
        if not self.unbiased or not kept.indices.numel():
            return kept
        return Sparse(kept.indices, kept.values * (kept.num_rows / kept.indices.numel()), kept.num_rows)

    def keeps(self, numel: int) -> tuple[int, int]:
        """Return k, twice."""
        k = num_kept(self.density, numel)
        return k, k
