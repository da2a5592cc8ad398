"""What of a shard travels: nothing of a slice, all of it, or some of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from omnizen.train.groups.layout import Shard, Slice
from omnizen.types import Parts

Item = Tensor | tuple[Tensor, Tensor] | None
"""Of one slice: all of it, (row numbers, rows), or nothing."""


class Form(IntEnum):
    """How a slice travels."""

    NOTHING = 0
    WHOLE = 1
    ROWS = 2


def pack_items(items: Sequence[Item]) -> Parts:
    """Return parts: the form of each slice, whole ones one behind the other by dtype, then rows.

    Example:
        >>> parts = pack_items([torch.ones(2), None, (torch.tensor([4]), torch.ones(1, 3))])
        >>> [p.tolist() for p in parts]
        [[1, 0, 2], [1.0, 1.0], [4], [[1.0, 1.0, 1.0]]]
    """
    forms: list[int] = []
    whole: dict[torch.dtype, list[Tensor]] = {}
    rows: list[Tensor] = []
    for item in items:
        if item is None:
            forms.append(Form.NOTHING)
        elif isinstance(item, Tensor):
            forms.append(Form.WHOLE)
            whole.setdefault(item.dtype, []).append(item.reshape(-1))
        else:
            forms.append(Form.ROWS)
            rows += item
    runs = [torch.cat(found) if len(found) > 1 else found[0] for found in whole.values()]
    return [torch.tensor(forms, dtype=torch.uint8), *runs, *rows]


def unpack_items(parts: Parts, shard: Shard, dtypes: Sequence[torch.dtype]) -> list[Item]:
    """Return what ``pack_items`` was given.

    Args:
        dtypes: of each slice.
    """
    forms = parts[0].tolist()
    order = list(dict.fromkeys(dtype for dtype, form in zip(dtypes, forms, strict=True) if form == Form.WHOLE))
    runs = dict(zip(order, parts[1:], strict=False))
    rest = iter(parts[1 + len(order) :])
    at = dict.fromkeys(order, 0)
    items: list[Item] = []
    for form, piece, dtype in zip(forms, shard, dtypes, strict=True):
        if form == Form.WHOLE:
            begin, at[dtype] = at[dtype], at[dtype] + piece.end - piece.begin
            items.append(runs[dtype][begin : at[dtype]].view(piece.shape))
        else:
            items.append((next(rest), next(rest)) if form == Form.ROWS else None)
    return items


def gradient_item(grad: Tensor | None, piece: Slice) -> Item:
    """Return the part of a gradient that belongs to a slice, on the CPU."""
    if grad is None:
        return None
    if not grad.is_sparse:
        return piece.of(grad).cpu()
    grad = grad.coalesce()
    rows = grad.indices()[0].cpu()
    inside = (rows >= piece.begin // piece.width) & (rows < piece.end // piece.width)
    return rows[inside] - piece.begin // piece.width, grad.values().cpu()[inside]
