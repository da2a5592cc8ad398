"""A threshold from a distribution that is fitted to the magnitudes, stage by stage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from omnizen.errors import UserError, nearest
from omnizen.kernels.compaction import all_from
from omnizen.kernels.largest import largest
from omnizen.kernels.magnitudes import moments
from omnizen.selectors import tails
from omnizen.selectors.given import checked_count, checked_density, checked_flat, num_kept, sparse
from omnizen.types import Sparse, Step

Fit = Literal["exponential", "gamma", "pareto"]
FITS: tuple[Fit, ...] = ("exponential", "gamma", "pareto")
FIRST = 0.25
"""Fraction that the first of several stages aims at."""
EVERY = 5
HIGH, LOW = 1.2, 0.8


@dataclass(frozen=True, slots=True)
class Sidco:
    """Keep what exceeds the quantile of a fitted distribution: a pass for each stage, and one that collects.

    The first stage fits all magnitudes and aims at a quarter of them; each further one fits what exceeds the
    threshold before it, by an exponential or a generalised Pareto tail. Saves sorting and sampling; costs a number
    of elements that is only as good as the fit. ``adapted`` tells how many stages to use next. Zeros are left out
    of the fit, and k is counted among the others.

    Args:
        fit: distribution of the magnitudes: ``"exponential"``, ``"gamma"`` or ``"pareto"``.
        density: fraction of elements to keep, in (0, 1].
        stages: of the fit, at most ``most_stages(density)``; one is used where more than a quarter is to be kept.

    Reference: Abdelmoniem et al., "An Efficient Statistical-based Gradient Compression Technique for Distributed
    Training Systems", MLSys 2021.

    Example:
        >>> import torch
        >>> sidco("exponential", 0.5).select(torch.tensor([1.0, -3.0, 2.0, 0.1]), Step(0)).indices
        tensor([1, 2])
    """

    fit: Fit = "exponential"
    density: float = 0.01
    stages: int = 3
    unbiased: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name in the catalogue."""
        return f"sidco-{self.fit}"

    def select(self, flat: Tensor, step: Step) -> Sparse:
        """Return the elements beyond the fitted threshold; the k largest where the fit leaves none."""
        del step  # the same in every step
        flat = checked_flat(flat, self.name)
        k = num_kept(self.density, flat.numel())
        indices, values = all_from(flat, self.threshold(flat, k), k)
        return sparse(flat, *((indices, values) if indices.numel() else largest(flat, k)))

    def threshold(self, flat: Tensor, k: int) -> float:
        """Return the magnitude that about k elements of ``flat`` exceed."""
        some = moments(flat, 0.0, self.fit == "gamma")
        if not some.num:
            return math.inf
        target = min(1.0, k / some.num)
        stages = 1 if target >= FIRST else self.stages
        first = target if stages == 1 else FIRST
        if self.fit == "gamma":
            reached = tails.gamma(some, first)
        else:
            reached = self._tail(some, 0.0, first)
        for _ in range(stages - 1):
            some = moments(flat, reached, False)
            if not some.num:
                break
            reached = self._tail(some, reached, (target / FIRST) ** (1 / (stages - 1)))
        return reached

    def _tail(self, some: tails.Moments, above: float, fraction: float) -> float:
        return (tails.exponential if self.fit == "exponential" else tails.pareto)(some, above, fraction)

    def keeps(self, numel: int) -> tuple[int, int]:
        """Return nothing and everything: it depends on how well the fit describes the values."""
        return 0, numel


def most_stages(density: float) -> int:
    """Return how many stages are of use: each keeps at most half."""
    return max(1, math.ceil(math.log(density) / math.log(0.5)))


def adapted(scalars: Mapping[str, float], kept: int, aimed: int, density: float) -> dict[str, float]:
    """Return what to remember of the stages after a selection: after every 5th their number may change by one.

    Too many elements on average (1.2 times what was aimed at) call for one stage less, too few (0.8 times) for one
    more. The caller keeps the result, in a reducer's State for example, and uses ``stages`` in the next step.

    Args:
        scalars: what was returned before; ``stages`` alone at first.
        kept: elements that were selected.
        aimed: elements that were aimed at, k.
        density: of the selector.

    Example:
        >>> remembered = {"stages": 2.0}
        >>> for _ in range(5):
        ...     remembered = adapted(remembered, kept=50, aimed=100, density=0.01)
        >>> remembered["stages"]
        3.0
    """
    stages, steps = scalars["stages"], scalars.get("steps", 0.0) + 1
    total = scalars.get("ratios", 0.0) + kept / max(1, aimed)
    if steps < EVERY:
        return {"stages": stages, "steps": steps, "ratios": total}
    mean = total / steps
    change = -1 if mean > HIGH else 1 if mean < LOW else 0
    return {"stages": float(min(max(1, stages + change), most_stages(density))), "steps": 0.0, "ratios": 0.0}


def sidco(fit: str = "exponential", density: float = 0.01, stages: int = 3) -> Sidco:
    """Make the selector by a fitted distribution; see ``Sidco``."""
    for known in FITS:
        if fit == known:
            name = f"sidco-{fit}"
            return Sidco(known, checked_density(density, name), checked_count(stages, "stages", name, 1, 64))
    raise UserError(f"sidco: fit: {nearest(fit, FITS)}")
