"""Sorted values as polynomials, piece by piece."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.values.curve import Curve, checked_rank_bits, least_squares
from omnizen.errors import UserError

KNOTS = (0.0, 1 / 100, 1 / 30, 1 / 10, 1 / 5, 1.0)
"""Where pieces begin and end, as fractions of the sorted values: the largest ones fall off steeply."""


@dataclass(frozen=True, slots=True)
class CurvePoly(Curve):
    """Fit sorted values by five polynomials for each sign, by least squares.

    Saves the values' bits, at about 1 % relative error; costs the rank of each value, ``ceil(log2 n)`` bits, and
    the time of a sort. With ``rank_bits=8`` it is a quantiser of 256 levels that follow the distribution.

    Args:
        degree: of each polynomial.
        rank_bits: bits of a rank on the wire; None for all.

    Example:
        >>> from omnizen.types import Dense, Step; x = torch.randn(1000)
        >>> codec = curve_poly(); back = codec.decode(codec.encode(Dense(x), Step(0))).values
        >>> bool((back - x).norm() < 0.02 * x.norm())
        True

    Reference: Xu et al., "DeepReduce", NeurIPS 2021, Fit-Poly (degree 5, pieces at these fractions).
    """

    degree: int
    rank_bits: int | None
    name: ClassVar[str] = "curve-poly"

    @property
    def num_coefficients(self) -> int:
        """Numbers that describe one curve."""
        return (len(KNOTS) - 1) * (self.degree + 1)

    def fit(self, y: Tensor) -> Tensor:
        """Return the coefficients of each piece, in Chebyshev's basis."""
        coefficients = y.new_zeros(len(KNOTS) - 1, self.degree + 1)
        for i, (begin, end) in enumerate(_pieces(y.numel())):
            if end > begin:
                coefficients[i] = least_squares(self._basis(end - begin, y.device), y[begin:end])
        return coefficients.view(-1)

    def curve(self, coefficients: Tensor, count: int) -> Tensor:
        """Return the pieces' points, one after another."""
        pieces = zip(coefficients.view(len(KNOTS) - 1, -1), _pieces(count), strict=True)
        return torch.cat([self._basis(end - begin, c.device) @ c for c, (begin, end) in pieces])

    def _basis(self, count: int, device: torch.device) -> Tensor:
        t = torch.linspace(-1, 1, count, dtype=torch.float64, device=device)
        columns = [torch.ones_like(t), t]
        while len(columns) <= self.degree:
            columns.append(2 * t * columns[-1] - columns[-2])
        return torch.stack(columns[: self.degree + 1], 1)


def _pieces(count: int) -> list[tuple[int, int]]:
    ends = [round(knot * count) for knot in KNOTS]
    return list(itertools.pairwise(ends))


def curve_poly(degree: int = 5, rank_bits: int | None = None) -> CurvePoly:
    """Make the codec of sorted values as polynomials; see ``CurvePoly``."""
    if not 0 <= degree <= 20:
        raise UserError(f"curve-poly: degree must be from 0 to 20, got {degree}")
    return CurvePoly(degree, checked_rank_bits(rank_bits, "curve-poly"))
