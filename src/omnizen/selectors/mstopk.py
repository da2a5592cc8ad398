"""The k largest, nearly, by trying thresholds: no sort, only counting, which suits GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.kernels.compaction import all_from
from omnizen.kernels.magnitudes import count_from, moments, peak
from omnizen.selectors.given import checked_count, checked_density, checked_flat, num_kept, sparse
from omnizen.types import Sparse, Step, hash_text


@dataclass(frozen=True, slots=True)
class MSTopK:
    """Bisect between the mean and the largest magnitude for thresholds that just under and over k elements reach.

    All of the upper one are kept, and a run of those between the two, at a random place, makes them k. Saves the
    sort that is slow on GPUs; costs one pass for each round (on a processor ``top-k`` is faster, and exact). As the
    search begins at the mean, more than about 35 % cannot be found by size; the run then takes the rest.

    Args:
        density: fraction of elements to keep, in (0, 1].
        rounds: of the search; 16 leave the two counts within 1 % of k on heavy tails.

    Reference: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters",
    MLSys 2021, algorithm 1.

    Example:
        >>> mstopk(0.5).select(torch.tensor([1.0, -3.0, 2.0, 0.5]), Step(0)).indices
        tensor([1, 2])
    """

    density: float = 0.01
    rounds: int = 16
    name: ClassVar[str] = "mstopk"
    unbiased: ClassVar[bool] = False

    def select(self, flat: Tensor, step: Step) -> Sparse:
        """Return k elements, all but the last few of them the largest."""
        flat = checked_flat(flat, self.name)
        k = num_kept(self.density, flat.numel())
        upper, lower, expected = self._bracket(flat, k)
        indices, values = all_from(flat, lower, expected)
        sure = ~(values.abs() < upper)
        others = (~sure).nonzero().view(-1)
        missing = max(0, min(others.numel(), k - int(sure.sum())))
        begin = hash_text(f"{step.shared_seed}/{step.n}/{step.name}/run") % (others.numel() - missing + 1)
        sure[others[begin : begin + missing]] = True
        return sparse(flat, indices[sure], values[sure])

    def _bracket(self, flat: Tensor, k: int) -> tuple[float, float, int]:
        """Return thresholds that at most k and more than k elements reach, and how many reach the second."""
        some, largest = moments(flat, 0.0, False), peak(flat)
        mean = some.mean * some.num / max(1, flat.numel())
        upper, lower, under, over = math.inf, 0.0, -1, flat.numel()
        low, high = 0.0, 1.0
        for _ in range(self.rounds):
            ratio = (low + high) / 2
            threshold = float(torch.tensor(mean + ratio * (largest - mean), dtype=flat.dtype))
            count = count_from(flat, threshold)
            if count <= k:
                high = ratio
                if count > under:
                    under, upper = count, threshold
            else:
                low = ratio
                if count < over:
                    over, lower = count, threshold
        return upper, lower, over

    def keeps(self, numel: int) -> tuple[int, int]:
        """Return k, twice."""
        k = num_kept(self.density, numel)
        return k, k


def mstopk(density: float = 0.01, rounds: int = 16) -> MSTopK:
    """Make the selector by bisection; see ``MSTopK``."""
    return MSTopK(checked_density(density, "mstopk"), checked_count(rounds, "rounds", "mstopk", 1, 64))
