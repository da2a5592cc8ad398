"""One bit a value, and the mean magnitude."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from omnizen.codecs.values.quantised import Meta, Quantised, blocks_of, num_blocks, scale_bytes
from omnizen.errors import UserError
from omnizen.kernels.fields import pack_fields, unpack_fields
from omnizen.types import Step


@dataclass(frozen=True, slots=True)
class Sign(Quantised):
    """Send the sign of each value and the mean magnitude of its bucket.

    Saves all but one bit a value. Costs bias: use it behind error feedback, where the scale makes it converge.
    Among all ``c * sign(x)`` it is the nearest to x, so its error is less than that of sending nothing.

    Args:
        bucket: values that share a scale; 0 for all.

    Example:
        >>> import torch; from omnizen.types import Dense; codec = sign()
        >>> codec.decode(codec.encode(Dense(torch.tensor([1.0, -3.0, 2.0])), Step(0))).values
        tensor([ 2., -2.,  2.])

    Reference: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019,
    algorithm 1; Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014.
    """

    bucket: int
    name: ClassVar[str] = "sign"
    unbiased: ClassVar[bool] = False

    def pack(self, flat: Tensor, step: Step) -> tuple[tuple[Tensor, ...], Meta]:
        """Return a bit a value (set when negative), and a scale a bucket."""
        del step  # nothing is left to chance
        blocks = blocks_of(flat, self.bucket)
        total = blocks.abs().double().sum(1)
        shares = blocks_of(flat.new_ones(flat.numel()), self.bucket).sum(1).clamp(min=1)
        return (pack_fields(flat < 0, 1), (total / shares).to(flat.dtype)), ()

    def unpack(self, streams: tuple[Tensor, ...], meta: Meta, count: int) -> Tensor:
        """Return the scales with signs."""
        del meta
        packed, scales = streams
        signs = 1 - 2 * unpack_fields(packed, 1, count).to(scales.dtype)
        return (blocks_of(signs, self.bucket) * scales[:, None]).view(-1)[:count]

    def packed_bytes(self, count: int, itemsize: int) -> tuple[float, float]:
        """Return the bytes of ``count`` values, twice."""
        size = -(-count // 8) + num_blocks(count, self.bucket) * scale_bytes(itemsize)
        return size, size


def sign(bucket: int = 0) -> Sign:
    """Make the codec of signs with a scale; see ``Sign``."""
    if bucket < 0:
        raise UserError(f"sign: bucket must be 0 or more, got {bucket}")
    return Sign(bucket)
