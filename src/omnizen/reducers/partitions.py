"""How many partitions a parameter server should have: Parallax' search and the model that it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from omnizen.errors import UserError


@dataclass(frozen=True, slots=True)
class PartitionFit:
    """``seconds = fixed + shared / P + each (P - 1)``, fitted to samples.

    Args:
        partitions: the best number of partitions between the least and the most that were tried.
        fixed: seconds that do not depend on P.
        shared: seconds of the work that partitions share.
        each: seconds that one more partition costs.
    """

    partitions: int
    fixed: float
    shared: float
    each: float

    def seconds(self, partitions: int) -> float:
        """Return what the model says of a number of partitions."""
        return self.fixed + self.shared / partitions + self.each * (partitions - 1)


def fit_partitions(samples: Mapping[int, float]) -> PartitionFit:
    """Fit Parallax' model by least squares and return the number of partitions that it says is best.

    Args:
        samples: seconds by number of partitions, at least three numbers.

    Raises:
        UserError: for fewer samples, or for numbers of partitions below 1.

    Example:
        >>> fit_partitions({p: 1.0 + 16.0 / p + 0.25 * (p - 1) for p in (2, 4, 8, 16)}).partitions
        8

    Reference: Kim et al., "Parallax", EuroSys 2019, section 4.2.
    """
    if len(samples) < 3:
        raise UserError(f"fit_partitions needs samples of three numbers of partitions or more, got {len(samples)}")
    if min(samples) < 1:
        raise UserError(f"fit_partitions: numbers of partitions begin with 1, got {min(samples)}")
    counts = torch.tensor(sorted(samples), dtype=torch.float64)
    seconds = torch.tensor([samples[int(count)] for count in counts], dtype=torch.float64)
    slowest = float(seconds.max()) or 1.0  # as in Parallax, so that all samples weigh alike in any unit
    terms = torch.stack([torch.ones_like(counts), 1 / counts, counts - 1], 1)
    fixed, shared, each = (float(c) * slowest for c in torch.linalg.lstsq(terms, seconds / slowest).solution)
    found = PartitionFit(0, fixed, shared, each)
    best = min(range(int(counts[0]), int(counts[-1]) + 1), key=found.seconds)
    return PartitionFit(best, fixed, shared, each)


def search_partitions(measure: Callable[[int], float], start: int, least: int = 1) -> PartitionFit:
    """Try numbers of partitions as Parallax does and fit its model to what was measured.

    Doubles while that is faster; then goes on from half of the first one, halving while that is faster.

    Args:
        measure: seconds with a number of partitions; ranks that share an answer must get the same one.
        start: the first number to try.
        least: the smallest number to try.
    """
    if not 1 <= least <= start:
        raise UserError(f"search_partitions: start must be at least least, and that at least 1: {start}, {least}")
    samples = {start: measure(start)}
    count = start
    while True:
        count *= 2
        samples[count] = measure(count)
        if samples[count] > samples[count // 2]:
            break
    count = start // 2
    while count >= least:
        samples[count] = measure(count)
        if samples[count] > samples[min(other for other in samples if other > count)]:
            break
        count //= 2
    if len(samples) < 3:
        samples[4 * start] = measure(4 * start)
    return fit_partitions(samples)
