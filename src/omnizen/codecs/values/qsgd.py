"""Few levels between zero and the largest value, chosen by chance so that the mean is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.values.quantised import Meta, Quantised, blocks_of, num_blocks, scale_bytes
from omnizen.errors import UserError, nearest
from omnizen.kernels.fields import pack_fields, unpack_fields
from omnizen.types import Step

NORMS = ("max", "l2")


def round_by_chance(x: Tensor, step: Step) -> Tensor:
    """Round each number to one of its two neighbouring integers, nearer ones likelier, so that the mean is ``x``.

    The choices follow from the step alone; reducers put the rank into its name where ranks should choose apart.
    """
    return (x + torch.rand(x.shape, generator=step.shared_rng()).to(x.device)).floor_()


def levels_of(blocks: Tensor, norms: Tensor, levels: int, step: Step) -> Tensor:
    """Return ``sign(x) * l`` with ``l`` in ``0..levels`` and mean ``levels * x / norm`` of its block."""
    shares = blocks.abs().div_(torch.where(norms > 0, norms, 1)[:, None]).mul_(levels)
    return round_by_chance(shares, step).clamp_(max=levels).copysign_(blocks)


@dataclass(frozen=True, slots=True)
class Qsgd(Quantised):
    """Send each value as one of ``2 levels + 1`` multiples of its bucket's norm, chosen by chance: unbiased.

    Saves all but ``log2(2 levels + 1)`` bits, rounded up, of each value, plus one norm a bucket (4.06 bits with the
    defaults). Costs variance: the error of a value is up to ``norm / levels``.

    Args:
        levels: between zero and the norm, ``s``.
        bucket: values that share a norm; 0 for all.
        norm: ``"max"`` (the largest magnitude, less variance) or ``"l2"`` (the paper's bounds).

    Example:
        >>> from omnizen.types import Dense; x = torch.tensor([7.0, -3.0, 0.0])
        >>> codec = qsgd(levels=7); codec.decode(codec.encode(Dense(x), Step(0))).values
        tensor([ 7., -3.,  0.])

    Reference: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS
    2017, section 3.1, with bucketing and maximum norm of section 4.
    """

    levels: int
    bucket: int
    norm: str
    name: ClassVar[str] = "qsgd"
    unbiased: ClassVar[bool] = True

    @property
    def bits(self) -> int:
        """Bits of a value."""
        return (2 * self.levels).bit_length()

    def pack(self, flat: Tensor, step: Step) -> tuple[tuple[Tensor, ...], Meta]:
        """Return packed levels, and a norm a bucket."""
        blocks = blocks_of(flat, self.bucket)
        norms = scales = blocks.abs().amax(1)
        if self.norm == "l2":  # the root of the mean square travels, as the norm itself may overflow
            shares = blocks / torch.where(scales > 0, scales, 1)[:, None]
            scales = scales * shares.square().mean(1).sqrt()
            norms = scales.double() * blocks.shape[1] ** 0.5
        levels = levels_of(blocks, norms, self.levels, step).view(-1)[: flat.numel()]
        small = torch.uint8 if self.bits <= 8 else torch.int32
        return (pack_fields(levels.add_(self.levels).to(small), self.bits), scales), ()

    def unpack(self, streams: tuple[Tensor, ...], meta: Meta, count: int) -> Tensor:
        """Return multiples of the norms."""
        del meta
        packed, scales = streams
        shares = (unpack_fields(packed, self.bits, count) - self.levels).to(scales.dtype).div_(self.levels)
        blocks = blocks_of(shares, self.bucket)
        norms = scales if self.norm == "max" else scales.double() * blocks.shape[1] ** 0.5
        return (blocks * norms[:, None]).view(-1)[:count]

    def packed_bytes(self, count: int, itemsize: int) -> tuple[float, float]:
        """Return the bytes of ``count`` values, twice."""
        size = -(-count * self.bits // 8) + num_blocks(count, self.bucket) * scale_bytes(itemsize)
        return size, size


def qsgd(levels: int = 7, bucket: int = 512, norm: str = "max") -> Qsgd:
    """Make the codec of values on a few levels; see ``Qsgd``."""
    if not 1 <= levels < 2**23 or bucket < 0:
        raise UserError(f"qsgd: levels must be from 1 to 2^23 and bucket 0 or more, got {levels} and {bucket}")
    if norm not in NORMS:
        raise UserError(f"qsgd: norm: {nearest(norm, NORMS)}")
    return Qsgd(levels, bucket, norm)
