"""Blocks that hold anything on any rank, and a dense all-reduce over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.cast import checked_values
from omnizen.codecs.coo import index_bytes, index_dtype
from omnizen.kernels.bits import pack_bits, unpack_bits
from omnizen.protocols import Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.bases import WireFormat
from omnizen.reducers.blocks import (
    BLOCK_ELEMENTS,
    checked_count,
    cut,
    num_blocks,
    put_back,
    rows_in_block,
    touched_blocks,
)
from omnizen.reducers.contribution import checked
from omnizen.reducers.dense import DenseAverage
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Parts, Reduced, Sparse, Sparsity, State, Step, Traffic


@dataclass(frozen=True, slots=True)
class OmniReduce(WireFormat):
    """Agree on the union of non-zero blocks, then all-reduce it: ``2 (n-1)/n`` of the union's blocks each way.

    Saves whatever no rank touches, at the price of a dense ring, whatever n. Pays where non-zeros come in runs or
    in whole rows; scattered elements touch every block. Presence is a matter of values here: rows of a block that
    are zero on all ranks, or whose sum is, do not come back.

    Ranks tell their blocks as bits or as numbers, whichever is shorter.

    Args:
        block: elements in a block; rows are never cut, so a row of more elements is a block of its own.
        values: ``"float32"`` sends values as they are, ``"float16"`` and ``"bfloat16"`` 16 bits of them.

    Reference: Fei et al., "Efficient Sparse Collective Communication and its application to Accelerate Distributed
    Deep Learning" (OmniReduce), SIGCOMM 2021, without aggregators.
    """

    block: int = BLOCK_ELEMENTS
    values: str = "float32"
    name: ClassVar[str] = "omnireduce"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Sparse, Dense)

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to tell the blocks; the all-reduce begins when the result is waited for."""
        checked(x, self.takes, self.name)
        with span("encode", step.name):
            ids, data, count = cut(x, self.block)
            told = _tell(ids, count)
        pending = comm.all_gather(told)

        def finish() -> Reduced:
            gathered = pending.wait()
            with span("encode", step.name):
                union = torch.unique(torch.cat([_heard(parts) for parts in gathered]))
                mine = data.new_zeros(union.numel(), data.shape[1])
                mine[torch.searchsorted(union, ids)] = data
            reduced = DenseAverage(self.values).start(Dense(mine), State(), comm, step).wait()
            with span("decode", step.name):
                value, sent = (
                    None if each is None else put_back(union, each.values, x, self.block)
                    for each in (reduced.value, reduced.sent)
                )
            assert value is not None
            return Reduced(value, sent, state)

        return Later(finish)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at each rank, from the blocks that one and all ranks touch."""
        own, union = touched_blocks(pattern, self.block, size)
        rows = rows_in_block(pattern.width, self.block)
        count = num_blocks(pattern.num_rows, rows)
        told = (size - 1) * min(-(-count // 8), own * index_bytes(count))
        whole = Sparsity(round(union) * rows, pattern.width, 1.0, itemsize=pattern.itemsize)
        return wire_cost.scheduled(told, told, 2, size) + DenseAverage(self.values).traffic(whole, size)


def _tell(ids: Tensor, count: int) -> Parts:
    """Return block numbers as bits or as numbers, the other part empty."""
    numbers = ids.to(index_dtype(count))
    if numbers.numel() * numbers.element_size() <= -(-count // 8):
        return [torch.empty(0, dtype=torch.uint8, device=ids.device), numbers]
    return [pack_bits(ids, count), numbers[:0]]


def _heard(parts: Parts) -> Tensor:
    bits, numbers = parts
    return unpack_bits(bits) if bits.numel() else numbers.long()


def omnireduce(block: int = BLOCK_ELEMENTS, values: str = "float32") -> OmniReduce:
    """Make the block form of OmniReduce; see ``OmniReduce``."""
    return OmniReduce(checked_count(block, "block", "omnireduce"), checked_values(values, "omnireduce"))
