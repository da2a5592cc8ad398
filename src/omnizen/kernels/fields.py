"""Small unsigned integers side by side, ``bits`` each, lowest bit first."""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.kernels.spec import Kernel


def _pack_fields(fields: Tensor, bits: int) -> Tensor:
    places = torch.arange(bits, device=fields.device)
    flags = ((fields.long()[:, None] >> places) & 1).view(-1)
    flags = torch.nn.functional.pad(flags, (0, -flags.numel() % 8))
    return (flags.view(-1, 8) << torch.arange(8, device=fields.device)).sum(1).to(torch.uint8)


def _unpack_fields(packed: Tensor, bits: int, count: int) -> Tensor:
    flags = ((packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1).view(-1)
    places = torch.arange(bits, device=packed.device)
    return (flags[: count * bits].view(count, bits).long() << places).sum(1)


pack_fields: Kernel[[Tensor, int], Tensor] = Kernel(
    "pack_fields", _pack_fields, cpu="omnizen.kernels.cpu.fields:pack_fields"
)
"""``pack_fields(fields [k] in [0, 2^bits), bits in 0..63) -> [ceil(k bits / 8)] uint8``."""

unpack_fields: Kernel[[Tensor, int, int], Tensor] = Kernel(
    "unpack_fields", _unpack_fields, cpu="omnizen.kernels.cpu.fields:unpack_fields"
)
"""``unpack_fields(packed [ceil(count bits / 8)] uint8, bits, count) -> [count] int64``."""
