"""Blocks of consecutive elements: how many rows make one, and which ones a contribution touches."""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.types import Sparsity

BLOCK_ELEMENTS = 256
"""Elements in a block unless another number is given, as in OmniReduce."""


def rows_in_block(width: int, elements: int = BLOCK_ELEMENTS) -> int:
    """Return how many whole rows make a block of about so many elements; wide rows are blocks of their own."""
    return max(1, elements // max(1, width))


def num_blocks(num_rows: int, rows: int) -> int:
    """Return how many blocks of so many rows there are, the last one perhaps shorter."""
    return -(-num_rows // rows)


def touched(indices: Tensor, rows: int) -> Tensor:
    """Return the blocks that ascending row indices (``[k]``) fall into, ``[b]`` int64 ascending."""
    return torch.unique_consecutive(torch.div(indices, rows, rounding_mode="floor"))


def touched_blocks(pattern: Sparsity, elements: int, size: int) -> tuple[float, float]:
    """Return how many blocks one worker and the union of ``size`` workers touch.

    As measured; otherwise as if rows were drawn independently, which is the most that a pattern can touch.
    """
    rows = rows_in_block(pattern.width, elements)
    count = num_blocks(pattern.num_rows, rows)
    if elements in pattern.blocks:
        own, union = pattern.blocks[elements]
        return own * count, union * count
    if not pattern.num_rows:
        return 0.0, 0.0
    covered = pattern.union_rows(size) / pattern.num_rows
    return count * (1 - (1 - pattern.density) ** rows), count * (1 - (1 - covered) ** rows)
