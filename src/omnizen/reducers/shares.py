"""Shares of a tensor: rows ``r % shares == j`` of a table, a piece of a dense tensor; cutting and joining them."""

from __future__ import annotations

import torch

from omnizen.codecs.coo import index_dtype
from omnizen.kernels.merge import merge, sum_dtype
from omnizen.kernels.nonzero_rows import nonzero_rows
from omnizen.kernels.partition import partition
from omnizen.reducers.contribution import as_tensor, finite
from omnizen.types import Contribution, Dense, Parts, Sparse


def cut(x: Contribution, shares: int, ranks: int) -> list[Parts]:
    """Return ``[values, rows]`` for each of some ranks; the first ``shares`` of them get one each.

    Rows are numbered within their share; a piece of a dense tensor has none.
    """
    small = index_dtype(x.num_rows if isinstance(x, Sparse) else 1)
    if isinstance(x, Dense):
        pieces = x.values.detach().reshape(-1, 1).tensor_split(shares)
        none = torch.empty(0, dtype=small, device=x.values.device)
        parts = [[piece, none] for piece in pieces]
    else:
        order, counts = partition(torch.remainder(x.indices, shares), shares)
        split = counts.tolist()
        values = x.values.detach()[order].split(split)
        rows = torch.div(x.indices[order], shares, rounding_mode="floor").to(small).split(split)
        parts = [[value, row] for value, row in zip(values, rows, strict=True)]
    return parts + [[part[:0] for part in parts[0]] for _ in range(ranks - shares)]


def rows_in_share(num_rows: int, share: int, shares: int) -> int:
    """Return how many rows a share has."""
    return max(0, -(-(num_rows - share) // shares))


def summed(received: list[Parts], like: Contribution, share: int, shares: int, factor: float) -> Contribution:
    """Return the sum of a share over the ranks of a group times a factor; 16-bit values as float32."""
    if isinstance(like, Dense):
        total = received[0][0].to(sum_dtype(like.values.dtype), copy=True)
        for values, _ in received[1:]:
            total += values
        return Dense(total.mul_(factor).view(-1))
    rows, values = merge([rows for _, rows in received], [values for values, _ in received])
    return Sparse(rows, values.mul_(factor), rows_in_share(like.num_rows, share, shares))


def told(value: Contribution, like: Contribution) -> Parts:
    """Return a share's average for the wire, in the type of ``like``: whole (no rows) or as rows.

    A piece of a dense tensor is always whole; of a table whatever takes fewer bytes.
    """
    values = value.values.to(like.values.dtype)
    if isinstance(like, Dense):
        flat = values if isinstance(value, Dense) else Sparse(value.indices, values, value.num_rows).to_dense()
        return [flat.reshape(-1, 1), torch.empty(0, dtype=index_dtype(1), device=flat.device)]
    small = index_dtype(like.num_rows)
    if isinstance(value, Sparse):
        return [values, value.indices.to(small)]
    table = values.view(-1, like.width)
    there = nonzero_rows(table)
    row_values = like.width * table.element_size()
    if there.numel() * (small.itemsize + row_values) < table.shape[0] * row_values:
        return [table[there], there.to(small)]
    return [table, there[:0].to(small)]


def nothing(like: Contribution) -> Parts:
    """Return what a rank without a share tells."""
    if isinstance(like, Dense):
        return told(Dense(like.values.detach().reshape(-1)[:0]), like)
    return told(Sparse(like.indices[:0], like.values.detach()[:0], 0), like)


def joined(shares: list[Parts], like: Contribution) -> Contribution:
    """Return the whole average: dense when all shares are whole, else rows."""
    if isinstance(like, Dense):
        return Dense(torch.cat([values for values, _ in shares]).view(like.values.shape), like.layout)
    count = len(shares)
    lengths = [rows_in_share(like.num_rows, at, count) for at in range(count)]
    whole = [not rows.numel() and len(values) == n for (values, rows), n in zip(shares, lengths, strict=True)]
    if all(whole) and like.num_rows:
        table = shares[0][0].new_empty(like.num_rows, like.width)
        for at, (values, _) in enumerate(shares):
            table[at::count] = values
        return Dense(table)
    found, kept = [], []
    for at, ((values, rows), is_whole) in enumerate(zip(shares, whole, strict=True)):
        there = nonzero_rows(values) if is_whole else rows.long()
        found.append(there * count + at)
        kept.append(values[there] if is_whole else values)
    order = torch.cat(found).argsort()
    return Sparse(torch.cat(found)[order], torch.cat(kept)[order], like.num_rows)


def difference(share: Contribution, sent: Contribution) -> Contribution:
    """Return what of a share was not sent; zero where that is not finite."""
    if isinstance(share, Sparse) and isinstance(sent, Sparse):
        rows, values = merge([share.indices, sent.indices], [share.values, -sent.values])
        return Sparse(rows, finite(values), share.num_rows)
    whole = as_tensor(share)
    return Dense(finite(whole - as_tensor(sent).view_as(whole)))


def less(x: Contribution, lost: Contribution, share: int, shares: int, factor: float) -> Contribution:
    """Return a rank's contribution less a factor times what its share lost."""
    if isinstance(x, Dense):
        flat = x.values.detach().reshape(-1).clone()
        piece = flat.tensor_split(shares)[share]
        piece -= (factor * as_tensor(lost).reshape(-1)).to(flat.dtype)
        return Dense(flat.view(x.values.shape), x.layout)
    rows = lost.indices if isinstance(lost, Sparse) else nonzero_rows(lost.values)
    values = lost.values if isinstance(lost, Sparse) else lost.values[rows]
    found, left = merge([x.indices, rows * shares + share], [x.values.detach(), -factor * values])
    return Sparse(found, left.to(x.values.dtype), x.num_rows)
