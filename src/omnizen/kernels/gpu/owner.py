"""Which rank owns a row, one program per block of rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _mix32(h):  # type: ignore[no-untyped-def]
    h = h ^ (h >> 16)
    h = (h * 0x85EBCA6B) & 0xFFFFFFFF
    h = h ^ (h >> 13)
    h = (h * 0xC2B2AE35) & 0xFFFFFFFF
    return h ^ (h >> 16)


@triton.jit
def _owners(rows, out, count, n, seed, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    row = tl.load(rows + at, mask=at < count, other=0).to(tl.int64)
    # Mixed values stay below 2^32 and n below 2^31, so signed 64-bit arithmetic holds every product's low half.
    high = _mix32((row >> 32) ^ seed)
    tl.store(out + at, (_mix32((row & 0xFFFFFFFF) ^ high) * n) >> 32, mask=at < count)


def hash_owner(rows: Tensor, n: int, seed: int) -> Tensor:
    """Twin of ``kernels.owner.hash_owner``."""
    out = torch.empty(rows.numel(), dtype=torch.int64, device=rows.device)
    if rows.numel():
        grid = (triton.cdiv(rows.numel(), BLOCK),)
        _owners[grid](rows.contiguous(), out, rows.numel(), n, seed & 0xFFFFFFFF, block=BLOCK)
    return out
