"""A threshold from a sample, then one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from omnizen.kernels.compaction import all_from
from omnizen.kernels.largest import largest
from omnizen.kernels.magnitudes import kth_magnitude, sample_magnitudes
from omnizen.selectors.given import checked_count, checked_density, checked_flat, num_kept, sparse
from omnizen.types import Sparse, Step, hash_text

SPARING = 64
"""At most one element in so many is sampled: each costs as much as reading a line of memory."""
LEAST_HITS = 64
"""With fewer in the sample the threshold would be off by more than 12 %, and k is small enough to be searched."""
TOLERANCE = 0.25
"""By how much of k the number of kept elements may be off before it is corrected."""
SPREADS = 1.5
"""How many spreads of the sample the threshold is set too low: too many cost bytes, too few cost accuracy."""


@dataclass(frozen=True, slots=True)
class SampledThreshold:
    """Keep what reaches the magnitude that ``k (1 + 1.5 / sqrt(hits))`` elements reach, by the word of a sample.

    Saves the search for the k-th largest; costs a number of elements that is known to ``1 / sqrt(hits)`` only, and
    is corrected (too many: the k largest of these; too few: a search) where it is off by more than a quarter. Where
    k is below 4096, the k largest are searched exactly.

    Args:
        density: fraction of elements to keep, in (0, 1].
        hits: how many of the k largest are in the sample, on average, if that is not more than 1 in 64 elements.

    Reference: Lin et al., "Deep Gradient Compression", ICLR 2018, section 5 (hierarchical sampling).

    Example:
        >>> import torch
        >>> kept = sampled_threshold(0.01).select(torch.randn(10**6), Step(0))
        >>> 7500 <= kept.indices.numel() <= 12500
        True
    """

    density: float = 0.01
    hits: int = 1024
    name: ClassVar[str] = "sampled-threshold"
    unbiased: ClassVar[bool] = False

    def select(self, flat: Tensor, step: Step) -> Sparse:
        """Return the elements from the estimated threshold on."""
        flat = checked_flat(flat, self.name)
        k = num_kept(self.density, flat.numel())
        samples = min(flat.numel() // SPARING, math.ceil(self.hits / self.density))
        hits = samples * self.density
        if hits < LEAST_HITS:
            return sparse(flat, *largest(flat, k))
        place = math.ceil(hits + SPREADS * math.sqrt(hits))
        seed = hash_text(f"{step.shared_seed}/{step.n}/{step.name}/sample")
        threshold = kth_magnitude(sample_magnitudes(flat, samples, seed), min(place, samples))
        indices, values = all_from(flat, threshold, k * place / hits)
        least, most = self.keeps(flat.numel())
        if indices.numel() > most:
            kept, values = largest(values, k)
            indices = indices[kept]
        elif indices.numel() < least:
            indices, values = largest(flat, k)
        return sparse(flat, indices, values)

    def keeps(self, numel: int) -> tuple[int, int]:
        """Return k less and plus a quarter."""
        k = num_kept(self.density, numel)
        return math.ceil(k * (1 - TOLERANCE)), min(numel, math.floor(k * (1 + TOLERANCE)))


def sampled_threshold(density: float = 0.01, hits: int = 1024) -> SampledThreshold:
    """Make the selector by a sampled threshold; see ``SampledThreshold``."""
    who = "sampled-threshold"
    return SampledThreshold(checked_density(density, who), checked_count(hits, "hits", who, LEAST_HITS, 2**20))
