"""Which rank owns a row. Every rank computes the same answer, from the row's number alone."""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.kernels.spec import Kernel

MASK32 = 0xFFFFFFFF
MIX_A, MIX_B = 0x85EBCA6B, 0xC2B2AE35


def mix32(h: Tensor) -> Tensor:
    """Scatter 32-bit integers (held in int64) evenly: MurmurHash3's finaliser, a bijection of 32 bits."""
    h = h ^ (h >> 16)
    h = (h * MIX_A) & MASK32
    h = h ^ (h >> 13)
    h = (h * MIX_B) & MASK32
    return h ^ (h >> 16)


def _hash_owner(rows: Tensor, n: int, seed: int) -> Tensor:
    rows = rows.long()
    high = mix32((rows >> 32) ^ (seed & MASK32))
    return (mix32((rows & MASK32) ^ high) * n) >> 32


def _cyclic_owner(rows: Tensor, n: int, seed: int) -> Tensor:
    del seed  # the row's number alone decides
    return torch.remainder(rows.long(), n)


hash_owner: Kernel[[Tensor, int, int], Tensor] = Kernel(
    "hash_owner",
    _hash_owner,
    cpu="omnizen.kernels.cpu.owner:hash_owner",
    gpu="omnizen.kernels.gpu.owner:hash_owner",
)
"""``hash_owner(rows [k], n, seed) -> [k] int64``: even whatever the pattern (Zen, OSDI 2025, section 3.2, h0)."""

cyclic_owner: Kernel[[Tensor, int, int], Tensor] = Kernel("cyclic_owner", _cyclic_owner)
"""``cyclic_owner(rows [k], n, seed) -> [k] int64``: ``row % n``; needs no table, uneven where rows alias with n."""
