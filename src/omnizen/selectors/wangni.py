"""Elements kept with probabilities that spend a number of elements at the least variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.selectors.given import checked_count, checked_density, checked_flat, checked_positive, num_kept
from omnizen.types import Sparse, Step

MOST_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class Wangni:
    """Keep element i with probability ``p_i = min(lambda |g_i|, 1)`` and send ``g_i / p_i``: unbiased.

    Needs no memory of what was left out. Large elements travel as they are, all others as ``sign / lambda``, so one
    magnitude stands for them (the codec ``common-magnitude`` sends it once). Costs variance: at 1 % density
    ``sum(g^2 / p)`` is 64 times ``sum(g^2)`` for Gaussian gradients (100 for a uniform choice), 2.5 times for
    log-normal ones with sigma 2: it pays where few elements hold most of the gradient.

    Args:
        density: fraction of elements to keep on average, in (0, 1].
        rounds: of the greedy search for lambda; 2 come within 0.1 % on all but the heaviest tails.
        epsilon: when given, lambda is the exact one at which the variance is ``1 + epsilon`` times the square of
            the gradient; then ``density`` only serves predictions.

    Reference: Wangni, Wang, Liu and Zhang, "Gradient Sparsification for Communication-Efficient Distributed
    Optimization", NeurIPS 2018, algorithms 2 (exact) and 3 (greedy).

    Example:
        >>> wangni(1.0).select(torch.tensor([1.0, -3.0]), Step(0)).values.view(-1)
        tensor([ 1., -3.])
    """

    density: float = 0.05
    rounds: int = 2
    epsilon: float | None = None
    name: ClassVar[str] = "wangni"
    unbiased: ClassVar[bool] = True

    def select(self, flat: Tensor, step: Step) -> Sparse:
        """Return the drawn elements, rescaled; what is not finite is always drawn."""
        flat = checked_flat(flat, self.name)
        size = flat.abs().double()
        odd = ~torch.isfinite(size)
        size[odd] = 0.0
        if self.epsilon is not None:
            kept_below, inverse = exact_cut(size, self.epsilon)
        else:
            kept_below, inverse = greedy_cut(size, num_kept(self.density, flat.numel()), self.rounds)
        # p = min(size / inverse, 1); a draw u is below it when u * inverse < size.
        drawn = torch.rand(flat.numel(), generator=step.shared_rng(), dtype=torch.float64).to(flat.device)
        whole = (size >= kept_below) & (size > 0) | odd
        part = (drawn * inverse < size) & ~whole
        rows = (whole | part).nonzero().view(-1)
        values, is_part = flat[rows], part[rows]
        inverse = min(inverse, torch.finfo(flat.dtype).max)
        values[is_part] = torch.copysign(torch.full_like(values[is_part], inverse), values[is_part])
        return Sparse(rows, values.view(-1, 1), flat.numel())

    def keeps(self, numel: int) -> tuple[int, int]:
        """Return nothing and everything: chance decides; ``density numel`` is the mean."""
        return 0, numel


def greedy_cut(size: Tensor, count: float, rounds: int) -> tuple[float, float]:
    """Return (magnitude from which p is 1, ``1 / lambda``) so that the p add up to a count.

    ``p = min(count |g| / sum |g|, 1)``, then each round scales the p below 1 by
    ``c = (count - d + |I|) / sum_I p`` while that is more than 1.

    Args:
        count: elements to keep on average, the paper's ``kappa d``.
        size: magnitudes ``[d]`` float64, all finite.
    """
    total, numel = float(size.sum()), size.numel()
    if not total:
        return float("inf"), 0.0
    factor = count / total
    for _ in range(rounds):
        below = size[size * factor < 1.0]
        mass = float(below.sum()) * factor
        scale = (count - numel + below.numel()) / mass if mass else 0.0
        if scale <= 1.0:
            break
        factor *= scale
    return 1.0 / factor, 1.0 / factor


def exact_cut(size: Tensor, epsilon: float) -> tuple[float, float]:
    """Return (magnitude from which p is 1, ``1 / lambda``) of the fewest elements for a variance.

    The p have the least sum of all with ``sum(g^2 / p) <= (1 + epsilon) sum(g^2)``.
    With magnitudes in descending order, k is the smallest number with
    ``|g_(k+1)| sum_{i>k} |g_i| <= eps sum g^2 + sum_{i>k} g_i^2``; those k have p = 1, the others
    ``|g_i| sum_{j>k} |g_j| / (eps sum g^2 + sum_{j>k} g_j^2)``.

    Args:
        size: magnitudes ``[d]`` float64, all finite.
    """
    if not size.numel() or not float(size.max()):
        return float("inf"), 0.0
    order = size.sort(descending=True).values
    rest = order.flip(0).cumsum(0).flip(0)  # sum from k on
    rest_squared = (order**2).flip(0).cumsum(0).flip(0)
    allowed = epsilon * rest_squared[0] + rest_squared
    enough = (order * rest <= allowed).nonzero().view(-1)
    k = int(enough[0])
    inverse = float(allowed[k] / rest[k]) if float(rest[k]) else 0.0
    return float(order[k - 1]) if k else float("inf"), inverse


def wangni(density: float = 0.05, rounds: int = 2, epsilon: float | None = None) -> Wangni:
    """Make the unbiased selector; see ``Wangni``."""
    if epsilon is not None:
        epsilon = checked_positive(epsilon, "epsilon", "wangni")
    return Wangni(
        checked_density(density, "wangni"), checked_count(rounds, "rounds", "wangni", 0, MOST_ROUNDS), epsilon
    )
