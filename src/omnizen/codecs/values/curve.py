"""Sorted values lie on a smooth curve: send the curve, and each value's place on it."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from omnizen.codecs.values.quantised import Meta, Quantised
from omnizen.errors import UserError
from omnizen.kernels.fields import pack_fields, unpack_fields
from omnizen.types import Step


class Curve(Quantised):
    """Sort values, fit a curve to the positive ones and one to the negative ones, send both and each value's rank.

    A subclass fits. The ranks cost ``ceil(log2 n)`` bits a value, which is most of what travels: 17 bits for
    100,000 values. With ``rank_bits`` only as many stretches of equal length are told apart, and a value becomes
    that in the middle of its stretch.
    """

    __slots__ = ()
    rank_bits: int | None

    @property
    def unbiased(self) -> bool:
        """No: a fit errs one way here and the other way there."""
        return False

    @property
    @abstractmethod
    def num_coefficients(self) -> int:
        """Numbers that describe one curve."""

    @abstractmethod
    def fit(self, y: Tensor) -> Tensor:
        """Return the ``[num_coefficients]`` of a curve through ``y`` ``[m]``, descending within ``(0, 1]``."""

    @abstractmethod
    def curve(self, coefficients: Tensor, count: int) -> Tensor:
        """Return ``count`` points of a curve, ``[count]`` float64."""

    def pack(self, flat: Tensor, step: Step) -> tuple[tuple[Tensor, ...], Meta]:
        """Return ranks, and both curves with their scales."""
        del step  # nothing is left to chance
        ordered, order = torch.sort(flat, descending=True, stable=True)
        ranks = torch.empty_like(order)
        ranks[order] = torch.arange(order.numel(), device=order.device)
        sent = self._bits(flat.numel())
        stretches = ranks if self._all(flat.numel()) else (ranks << sent) // flat.numel()
        positive, negative = int((ordered > 0).sum()), int((ordered < 0).sum())
        sides = (ordered[:positive], -ordered.flip(0)[:negative])
        curves = torch.cat([self._side(side.double()) for side in sides])
        return (pack_fields(stretches, sent), curves), (positive, negative)

    def unpack(self, streams: tuple[Tensor, ...], meta: Meta, count: int) -> Tensor:
        """Return the points of the curves at the ranks."""
        packed, curves = streams
        positive, negative = meta
        sent = self._bits(count)
        if positive + negative > count or packed.numel() != -(-count * sent // 8):
            raise UserError(f"{self.name}: damaged payload: it does not hold {count} values")
        above, below = curves.split(1 + self.num_coefficients)
        zeros = curves.new_zeros(count - positive - negative)
        table = torch.cat([self._points(above, positive), zeros, -self._points(below, negative).flip(0)])
        ranks = unpack_fields(packed, sent, count)
        if not self._all(count):
            ranks = (ranks * count + count // 2) >> sent
        return table[ranks.clamp_(max=max(0, count - 1))]

    def packed_bytes(self, count: int, itemsize: int) -> tuple[float, float]:
        """Return the bytes of ``count`` values, twice."""
        del itemsize  # curves are described in float64
        size = -(-count * self._bits(count) // 8) + 16 * (1 + self.num_coefficients)
        return size, size

    def _all(self, count: int) -> bool:
        """Whether ranks travel whole."""
        return self.rank_bits is None or self.rank_bits >= max(0, count - 1).bit_length()

    def _bits(self, count: int) -> int:
        """Return the bits of a rank on the wire."""
        whole = max(0, count - 1).bit_length()
        return whole if self.rank_bits is None else min(whole, self.rank_bits)

    def _side(self, y: Tensor) -> Tensor:
        if not y.numel():
            return y.new_zeros(1 + self.num_coefficients)
        return torch.cat([y[:1], self.fit(y / y[0])])

    def _points(self, side: Tensor, count: int) -> Tensor:
        if not count:
            return side[:0]
        return self.curve(side[1:], count).clamp(0, 1) * side[0]  # nothing lies outside, so cutting only helps


def least_squares(basis: Tensor, y: Tensor) -> Tensor:
    """Return the coefficients ``[c]`` of the columns of ``basis`` ``[m, c]`` nearest to ``y``, for any m."""
    return torch.linalg.pinv(basis.t() @ basis, hermitian=True) @ (basis.t() @ y)


def checked_rank_bits(rank_bits: int | None, who: str) -> int | None:
    """Return a number of bits unchanged; raises ``UserError`` for one that is not from 1 to 62."""
    if rank_bits is not None and not 1 <= rank_bits <= 62:
        raise UserError(f"{who}: rank_bits must be from 1 to 62 or None, got {rank_bits}")
    return rank_bits
