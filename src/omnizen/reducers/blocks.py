"""Blocks of consecutive elements: how many rows make one, and which ones a contribution touches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from omnizen.errors import UserError
from omnizen.kernels.nonzero_rows import nonzero_rows
from omnizen.types import Contribution, Dense, Sparse, Sparsity

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


def cut(x: Contribution, elements: int) -> tuple[Tensor, Tensor, int]:
    """Cut a contribution into blocks and keep those that hold anything.

    Args:
        x: rows are kept whole; a dense tensor is seen flat.
        elements: about how many make a block.

    Returns:
        The blocks' numbers ``[b]`` int64 ascending, their elements ``[b, block]`` with zeros between and behind the
        rows, and how many blocks there are in all.

    Example:
        >>> rows = Sparse(torch.tensor([1, 5]), torch.tensor([[1.0], [2.0]]), num_rows=7)
        >>> cut(rows, 2)
        (tensor([0, 2]), tensor([[0., 1.],
                [0., 2.]]), 4)
    """
    if isinstance(x, Dense):
        flat = x.values.detach().reshape(-1)
        count = num_blocks(flat.numel(), elements)
        whole = (
            flat
            if flat.numel() == count * elements
            else torch.cat([flat, flat.new_zeros(-flat.numel() % elements)])
        )
        matrix = whole.view(count, elements)
        ids = nonzero_rows(matrix)
        return ids, matrix[ids], count
    rows = rows_in_block(x.width, elements)
    blocks = torch.div(x.indices, rows, rounding_mode="floor")
    ids, at = torch.unique_consecutive(blocks, return_inverse=True)
    data = x.values.new_zeros(ids.numel() * rows, x.width)
    data[at * rows + x.indices % rows] = x.values.detach()
    return ids, data.view(ids.numel(), rows * x.width), num_blocks(x.num_rows, rows)


def put_back(ids: Tensor, data: Tensor, like: Contribution, elements: int) -> Contribution:
    """Return blocks as a contribution of the kind and type of ``like``; rows of nothing but zeros are left out.

    Args:
        ids: ``[b]`` int64 ascending.
        data: ``[b, block]``, as ``cut`` gives it.
    """
    data = data.to(like.values.dtype)
    if isinstance(like, Dense):
        numel = like.values.numel()
        whole = data.new_zeros(num_blocks(numel, elements), elements)
        whole[ids] = data
        return Dense(whole.view(-1)[:numel].view(like.values.shape), like.layout)
    rows = rows_in_block(like.width, elements)
    matrix = data.view(ids.numel() * rows, like.width)
    kept = nonzero_rows(matrix)
    return Sparse(
        ids[torch.div(kept, rows, rounding_mode="floor")] * rows + kept % rows, matrix[kept], like.num_rows
    )


def checked_count(value: int, what: str, who: str) -> int:
    """Return a setting that must be a whole number from 1; raises ``UserError`` when it is not."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{who}: {what} must be a whole number from 1, got {value!r}")
    return value


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


def share_beyond(profile: Sequence[float], num_rows: int, rows: int, place: float) -> float:
    """Return the share of the touched blocks that lie beyond a place in the tensor.

    Args:
        profile: rows in each of some equal ranges; empty counts as even.
        rows: rows of a block.
        place: fraction of the tensor that lies before.
    """
    wide = num_rows / max(1, len(profile))
    touched = [1 - (1 - min(1.0, there / wide)) ** rows for there in profile]
    if not sum(touched):
        return 1 - place
    cell, part = divmod(place * len(profile), 1)
    before = sum(touched[: int(cell)]) + part * sum(touched[int(cell) : int(cell) + 1])
    return 1 - before / sum(touched)
