"""Sorted values as a sum of two exponentials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.values.curve import Curve, checked_rank_bits, least_squares

STEEPEST = 300.0
"""Rates are cut here: beyond, an exponential is a single point."""


@dataclass(frozen=True, slots=True)
class CurveExp(Curve):
    """Fit the sorted values of each sign by ``a e^(p t) + c e^(q t)``, t from 0 to 1.

    Saves the values' bits with four numbers a sign; costs the rank of each value, ``ceil(log2 n)`` bits, the time
    of a sort, and an error that depends on how exponential the values are (some per cent for a Gaussian's). The
    rates are found without iteration: such a sum obeys a linear equation in its first and second integral.

    Args:
        rank_bits: bits of a rank on the wire; None for all.

    Example:
        >>> from omnizen.types import Dense, Step; x = torch.linspace(0, -9, 1000).exp()
        >>> codec = curve_exp(); back = codec.decode(codec.encode(Dense(x), Step(0))).values
        >>> bool((back - x).norm() < 0.01 * x.norm())
        True

    Reference: Xu et al., "DeepReduce", NeurIPS 2021, Fit-DExp; the fit by integrals is Jacquelin's, "Regressions et
    equations integrales", 2009.
    """

    rank_bits: int | None
    name: ClassVar[str] = "curve-exp"

    @property
    def num_coefficients(self) -> int:
        """Numbers that describe one curve."""
        return 4

    def fit(self, y: Tensor) -> Tensor:
        """Return both rates, then both factors."""
        t = torch.linspace(0, 1, y.numel(), dtype=torch.float64, device=y.device)
        once = _integral(y)
        twice = _integral(once)
        product, total, _, _ = least_squares(torch.stack([twice, once, t, torch.ones_like(t)], 1), y)
        root = (total * total + 4 * product).clamp(min=0).sqrt()
        rates = torch.stack([total + root, total - root]).div(2).nan_to_num().clamp(-STEEPEST, STEEPEST)
        return torch.cat([rates, least_squares(_exponentials(rates, t), y)])

    def curve(self, coefficients: Tensor, count: int) -> Tensor:
        """Return the sum of both exponentials."""
        t = torch.linspace(0, 1, count, dtype=torch.float64, device=coefficients.device)
        rates, factors = coefficients.split(2)
        return _exponentials(rates, t) @ factors


def _integral(y: Tensor) -> Tensor:
    """Return the integral from 0 by trapezoids, of points evenly spaced over ``[0, 1]``."""
    pieces = (y[1:] + y[:-1]) / (2 * max(1, y.numel() - 1))
    return torch.nn.functional.pad(pieces.cumsum(0), (1, 0))


def _exponentials(rates: Tensor, t: Tensor) -> Tensor:
    """Return both exponentials ``[m, 2]``; a growing one is scaled to end at 1."""
    return (rates * (t[:, None] - (rates > 0).to(t.dtype))).exp()


def curve_exp(rank_bits: int | None = None) -> CurveExp:
    """Make the codec of sorted values as two exponentials; see ``CurveExp``."""
    return CurveExp(checked_rank_bits(rank_bits, "curve-exp"))
