"""Sets of positions as bits, lowest bit first."""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.kernels.spec import Kernel


def _pack_bits(positions: Tensor, length: int) -> Tensor:
    flags = torch.zeros(-(-length // 8) * 8, dtype=torch.uint8, device=positions.device)
    flags[positions] = 1
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=positions.device)
    return (flags.view(-1, 8) * weights).sum(1, dtype=torch.uint8)


def _unpack_bits(packed: Tensor) -> Tensor:
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> shifts) & 1).view(-1).nonzero().view(-1)


pack_bits: Kernel[[Tensor, int], Tensor] = Kernel("pack_bits", _pack_bits, cpu="omnizen.kernels.cpu.bits:pack_bits")
"""``pack_bits(positions [k] in [0, length), length) -> [ceil(length / 8)] uint8``."""

unpack_bits: Kernel[[Tensor], Tensor] = Kernel(
    "unpack_bits", _unpack_bits, cpu="omnizen.kernels.cpu.bits:unpack_bits"
)
"""``unpack_bits(packed [b] uint8) -> [k] int64``: the positions of the set bits, ascending."""
