"""Elements of which many have one magnitude: it travels once, the others only say where and with which sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.coo import index_bytes, index_dtype
from omnizen.codecs.given import DTYPES, dtype_code, kind, packed_by
from omnizen.codecs.pipe import Pipeable
from omnizen.kernels.fields import pack_fields, unpack_fields
from omnizen.types import Packed, Payload, Sparse, Sparsity, Step

LIST, MAP = 0, 1
"""How signed places travel: one number each, or two bits for every row."""


@dataclass(frozen=True, slots=True)
class CommonMagnitude(Pipeable):
    """Send the commonest magnitude once, places with a sign for all elements that have it, the others as they are.

    The coding of Wangni's selection, whose smaller elements all travel as ``sign / lambda``: 4 bytes each instead
    of 8, or two bits for every row of the tensor where that is less. Exact whatever it is given; only single
    elements (width 1) are looked at.

    Example:
        >>> x = torch.tensor([[2.0], [-2.0], [7.0]]); rows = Sparse(torch.tensor([0, 5, 9]), x, num_rows=1000)
        >>> packed = common_magnitude().encode(rows, Step(0)); packed.nbytes
        20
        >>> common_magnitude().decode(packed).values.view(-1)
        tensor([ 2., -2.,  7.])

    Reference: Wangni, Wang, Liu and Zhang, "Gradient Sparsification for Communication-Efficient Distributed
    Optimization", NeurIPS 2018, section 3.3.
    """

    name: ClassVar[str] = "common-magnitude"
    takes: ClassVar[type[Payload]] = Sparse
    gives: ClassVar[type[Payload]] = Packed
    summable: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def encode(self, payload: Payload, step: Step) -> Packed:
        """Pack into other values, their places, the magnitude and its signed places."""
        del step  # the same in every step
        rows = kind(payload, Sparse, self.name)
        values = rows.values.detach()
        code = dtype_code(values.dtype, self.name)
        magnitude = _commonest(values)
        common = (values.abs() == magnitude).view(-1) if magnitude.numel() else _none(values)
        others = (values[~common].contiguous(), rows.indices[~common].to(index_dtype(rows.num_rows)))
        how, places = _signed_places(rows.indices[common], values[common].view(-1) < 0, rows.num_rows)
        return Packed((*others, magnitude, places), (rows.num_rows, code, how), self.name)

    def decode(self, payload: Payload) -> Sparse:
        """Return the rows, ascending."""
        packed = packed_by(payload, self.name)
        values, indices, magnitude, places = packed.streams
        num_rows, code, how = packed.meta
        values, indices = values.to(DTYPES[code]), indices.long()
        if magnitude.numel():
            common, negative = _read_places(how, places, num_rows)
            signed = torch.where(negative, -magnitude, magnitude).to(DTYPES[code])
            order = torch.cat([indices, common]).argsort()
            return Sparse(
                torch.cat([indices, common])[order], torch.cat([values, signed.view(-1, 1)])[order], num_rows
            )
        return Sparse(indices, values.clone(), num_rows)

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the bytes when all elements have one magnitude, and when no two have."""
        others = pattern.rows * (index_bytes(pattern.num_rows) + pattern.width * pattern.itemsize)
        return min(others, self.mean_bytes(pattern)), others

    def mean_bytes(self, pattern: Sparsity) -> float:
        """Return the bytes when all elements have one magnitude, as nearly all of a selection by chance have."""
        if pattern.width != 1:
            return pattern.rows * (index_bytes(pattern.num_rows) + pattern.width * pattern.itemsize)
        listed = pattern.rows * index_bytes(2 * pattern.num_rows)
        return min(listed, -(-pattern.num_rows // 4)) + pattern.itemsize


def _none(values: Tensor) -> Tensor:
    return torch.zeros(values.shape[0], dtype=torch.bool, device=values.device)


def _commonest(values: Tensor) -> Tensor:
    """Return the magnitude that most elements have, ``[1]``, or ``[0]`` where no two have the same."""
    sizes = values.abs().view(-1) if values.shape[1:].numel() == 1 else values.new_empty(0)
    found, counts = sizes[torch.isfinite(sizes) & (sizes > 0)].unique(return_counts=True)
    most = counts.argmax() if counts.numel() else None
    return found[most].view(1) if most is not None and counts[most] > 1 else values.new_empty(0)


def _signed_places(indices: Tensor, negative: Tensor, num_rows: int) -> tuple[int, Tensor]:
    """Return how places travel, and their bytes."""
    if indices.numel() * index_bytes(2 * num_rows) <= -(-num_rows // 4):
        return LIST, (2 * indices + negative).to(index_dtype(2 * num_rows)).view(torch.uint8)
    states = torch.zeros(num_rows, dtype=torch.uint8, device=indices.device)
    states[indices] = 1 + negative.to(torch.uint8)
    return MAP, pack_fields(states, 2)


def _read_places(how: int, places: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    if how == LIST:
        numbers = places.clone().view(index_dtype(2 * num_rows)).long()
        return numbers >> 1, (numbers & 1).bool()
    states = unpack_fields(places, 2, num_rows)
    indices = states.nonzero().view(-1)
    return indices, states[indices] == 2


def common_magnitude() -> CommonMagnitude:
    """Make the codec of elements with a common magnitude; see ``CommonMagnitude``."""
    return CommonMagnitude()
