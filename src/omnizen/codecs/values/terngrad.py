"""Minus, zero or plus the largest value: five to a byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.values.qsgd import levels_of
from omnizen.codecs.values.quantised import Meta, Quantised, scale_bytes
from omnizen.errors import UserError
from omnizen.types import Step

POWERS = (1, 3, 9, 27, 81)


@dataclass(frozen=True, slots=True)
class TernGrad(Quantised):
    """Send ``-s``, 0 or ``s`` for each value, s being the tensor's largest magnitude; unbiased.

    Saves all but 1.6 bits a value. Costs variance, most where one value is much larger than the others; clipping at
    ``clip`` standard deviations (the paper uses 2.5) lowers it and makes the codec biased.

    Args:
        clip: standard deviations beyond which values are cut, or None.

    Example:
        >>> from omnizen.types import Dense; codec = terngrad()
        >>> codec.decode(codec.encode(Dense(torch.tensor([2.0, -2.0, 0.0])), Step(0))).values
        tensor([ 2., -2.,  0.])

    Reference: Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning",
    NeurIPS 2017, equations 2 and 3 and section 3.3.
    """

    clip: float | None
    name: ClassVar[str] = "terngrad"

    @property
    def unbiased(self) -> bool:
        """Whether nothing is cut."""
        return self.clip is None

    def pack(self, flat: Tensor, step: Step) -> tuple[tuple[Tensor, ...], Meta]:
        """Return signs in base 3, and the scale."""
        if self.clip is not None and flat.numel():
            limit = self.clip * flat.double().std(correction=0).clamp(max=torch.finfo(flat.dtype).max).item()
            flat = flat.clamp(-limit, limit)
        scale = flat.abs().amax().view(1) if flat.numel() else flat.new_zeros(1)
        digits = (levels_of(flat[None], scale, 1, step).view(-1) + 1).to(torch.uint8)
        fives = torch.nn.functional.pad(digits, (0, -digits.numel() % 5)).view(-1, 5)
        powers = torch.tensor(POWERS, dtype=torch.uint8, device=flat.device)
        return ((fives * powers).sum(1, dtype=torch.uint8), scale), ()

    def unpack(self, streams: tuple[Tensor, ...], meta: Meta, count: int) -> Tensor:
        """Return signs times the scale."""
        del meta
        packed, scale = streams
        powers = torch.tensor(POWERS, dtype=torch.uint8, device=packed.device)
        digits = torch.div(packed[:, None], powers, rounding_mode="floor") % 3
        return (digits.view(-1)[:count].to(scale.dtype) - 1) * scale

    def packed_bytes(self, count: int, itemsize: int) -> tuple[float, float]:
        """Return the bytes of ``count`` values, twice."""
        size = -(-count // 5) + scale_bytes(itemsize)
        return size, size


def terngrad(clip: float | None = None) -> TernGrad:
    """Make the codec of values in three levels; see ``TernGrad``."""
    if clip is not None and not clip > 0:
        raise UserError(f"terngrad: clip must be above 0, got {clip}")
    return TernGrad(clip)
