"""Rows by owner: each block counts its owners, sums of the counts say where it writes, each block writes.

A program goes through its block one owner after another, so few owners are fast, and the order within is kept.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from omnizen.kernels.gpu.compaction import add
from omnizen.kernels.gpu.owner import hash_owner
from omnizen.kernels.partition import Divided

BLOCK = 1024


@triton.jit
def _count(owners, counts, count, blocks, n, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    owner = tl.load(owners + at, mask=at < count, other=-1)
    for g in range(n):
        tl.store(counts + g * blocks + tl.program_id(0), tl.reduce((owner == g).to(tl.int64), 0, add))


@triton.jit
def _write(rows, owners, begins, order, placed, count, blocks, n, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    owner = tl.load(owners + at, mask=at < count, other=-1)
    row = tl.load(rows + at, mask=at < count, other=0)
    for g in range(n):
        mine = owner == g
        place = tl.load(begins + g * blocks + tl.program_id(0)) + tl.associative_scan(mine.to(tl.int64), 0, add) - 1
        tl.store(order + place, at, mask=mine)
        tl.store(placed + place, row, mask=mine)


def hash_divide(rows: Tensor, n: int, seed: int, dtype: torch.dtype) -> Divided:
    """Twin of ``kernels.partition.hash_divide``."""
    k = rows.numel()
    rows = rows.contiguous()
    blocks = triton.cdiv(k, BLOCK)
    counts = torch.zeros(n, blocks, dtype=torch.int64, device=rows.device)
    order = torch.empty(k, dtype=torch.int64, device=rows.device)
    placed = torch.empty(k, dtype=dtype, device=rows.device)
    if k:
        owners = hash_owner(rows, n, seed)
        _count[(blocks,)](owners, counts, k, blocks, n, block=BLOCK)
        begins = counts.view(-1).cumsum(0) - counts.view(-1)
        _write[(blocks,)](rows, owners, begins, order, placed, k, blocks, n, block=BLOCK)
    return Divided(order, placed, counts.sum(1))
