"""Elements from a magnitude on: each block counts, sums of the counts say where it writes, each block writes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def add(a, b):  # type: ignore[no-untyped-def]
    """Combine two counts. The interpreter runs ``tl.sum`` only if it was on when triton was loaded."""
    return a + b


@triton.jit
def _kept(flat, at, count, least):  # type: ignore[no-untyped-def]
    x = tl.load(flat + at, mask=at < count, other=0.0).to(least.dtype)
    # What is not below is kept, NaN too; 0 is not, which other=0.0 also says of what is beyond the end.
    return ((tl.abs(x) < least) == 0) & (x != 0.0)


@triton.jit
def _count(flat, counts, count, threshold, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    kept = _kept(flat, at, count, tl.load(threshold))
    tl.store(counts + tl.program_id(0), tl.reduce(kept.to(tl.int64), 0, add))


@triton.jit
def _write(flat, begins, indices, values, count, room, threshold, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    kept = _kept(flat, at, count, tl.load(threshold))
    place = tl.load(begins + tl.program_id(0)) + tl.associative_scan(kept.to(tl.int64), 0, add) - 1
    fits = kept & (place < room)
    tl.store(indices + place, at, mask=fits)
    tl.store(values + place, tl.load(flat + at, mask=fits), mask=fits)


def compact(flat: Tensor, threshold: float, room: int) -> tuple[Tensor, Tensor, int]:
    """Twin of ``kernels.compaction.compact``."""
    flat = flat.detach().contiguous()
    n = flat.numel()
    if not n:
        return torch.empty(0, dtype=torch.int64, device=flat.device), flat[:0], 0
    blocks = triton.cdiv(n, BLOCK)
    wide = torch.float64 if flat.dtype == torch.float64 else torch.float32
    least = torch.tensor([threshold], dtype=flat.dtype, device=flat.device).to(wide)  # rounded as flat is
    counts = torch.empty(blocks, dtype=torch.int64, device=flat.device)
    _count[(blocks,)](flat, counts, n, least, block=BLOCK)
    ends = counts.cumsum(0)
    total = int(ends[-1])
    kept = min(total, room)
    indices = torch.empty(kept, dtype=torch.int64, device=flat.device)
    values = torch.empty(kept, dtype=flat.dtype, device=flat.device)
    if kept:
        _write[(blocks,)](flat, ends - counts, indices, values, n, kept, least, block=BLOCK)
    return indices, values, total
