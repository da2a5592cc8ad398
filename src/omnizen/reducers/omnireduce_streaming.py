"""Aggregators that ask each worker, lane by lane, for nothing but its next non-zero block."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.cast import checked_values, narrow
from omnizen.codecs.coo import index_bytes, index_dtype
from omnizen.kernels.merge import sum_dtype
from omnizen.kernels.partition import partition
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
    share_beyond,
    touched_blocks,
)
from omnizen.reducers.contribution import checked, finite
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Parts, Reduced, Sparse, Sparsity, State, Step, Traffic

LANES = 64
"""Lanes of each aggregator, as slots of a core in the authors' code."""
LEAST_BLOCKS_IN_A_LANE = 8
"""Small tensors have fewer lanes, or their first burst would be all of them."""


@dataclass(frozen=True, slots=True)
class OmniReduceStreaming(WireFormat):
    """Stream blocks through lanes: about ``(n-1)/n`` of one rank's and of the union's blocks, and no indices.

    Block b is in lane ``b % lanes``. A worker sends a lane's first block in any case, and with each block the
    number of its next non-zero one in that lane. The aggregator of the lane adds up the blocks of those workers
    that have the current one, sends the average to all together with the least of the announced numbers, and goes
    on with that; workers whose next block lies beyond it stay silent. Aggregators are the ranks themselves: lane l
    belongs to rank ``l % n``.

    What differs from the paper: lanes advance together, in rounds of one all-to-all and one all-gather, where the
    authors' lanes advance on their own and overlap; so a step takes as many rounds as the fullest lane has blocks.
    Averages are sent in place of sums. Rows that are zero on all ranks, or whose sum is, do not come back.

    Args:
        block: elements in a block; rows are never cut.
        lanes: most lanes of an aggregator. More make fewer rounds and a larger first burst.
        values: ``"float32"`` sends values as they are, ``"float16"`` and ``"bfloat16"`` 16 bits of them; an
            aggregator counts the rounding of its averages as not sent.

    Reference: Fei et al., "Efficient Sparse Collective Communication and its application to Accelerate Distributed
    Deep Learning" (OmniReduce), SIGCOMM 2021.
    """

    block: int = BLOCK_ELEMENTS
    lanes: int = LANES
    values: str = "float32"
    name: ClassVar[str] = "omnireduce-streaming"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Sparse, Dense)

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin the first burst; the other rounds follow when the result is waited for."""
        checked(x, self.takes, self.name)
        with span("encode", step.name):
            ids, data, count = cut(x, self.block)
            lanes = self._lanes(count, comm.size)
            worker = _Worker(narrow(data, self.values), ids, count, lanes)
            burst = worker.send(torch.arange(lanes, device=ids.device), comm.size, first=True)
        push = comm.all_to_all(burst)

        def finish() -> Reduced:
            server = _Aggregator(comm.rank, comm.size, lanes, count, data)
            pending = push
            while True:
                received = pending.wait()
                with span("decode", step.name):
                    mean, least = server.add(received, worker.current)
                low = narrow(mean, self.values)
                server.book(mean, low)
                gathered = comm.all_gather([low, least.to(index_dtype(count + 1))]).wait()
                with span("decode", step.name):
                    left = worker.take(gathered)
                if not left.numel():
                    break
                with span("encode", step.name):
                    parts = worker.send(left, comm.size)
                pending = comm.all_to_all(parts)
            with span("decode", step.name):
                value = put_back(*worker.result(), x, self.block)
                sent = None
                if worker.data.dtype != data.dtype:
                    sent = put_back(*_less(ids, worker.data.to(data.dtype), *server.lost()), x, self.block)
            return Reduced(value, sent, state)

        return Later(finish)

    def _lanes(self, count: int, size: int) -> int:
        return min(self.lanes * size, max(-(-count // LEAST_BLOCKS_IN_A_LANE), min(count, size)))

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes at each rank; blocks are taken to fall into lanes at random."""
        rows = rows_in_block(pattern.width, self.block)
        count = num_blocks(pattern.num_rows, rows)
        if size == 1 or not count:
            return wire_cost.scheduled(0.0, 0.0, 2, size) + wire_cost.scheduled(0.0, 0.0, 2, size)
        lanes = self._lanes(count, size)
        own, union = touched_blocks(pattern, self.block, size)
        itemsize = pattern.itemsize if self.exact else min(2, pattern.itemsize)
        a_block = rows * pattern.width * itemsize + index_bytes(count + 1)
        profiles = (pattern.own_profile, pattern.union_profile)  # the first burst carries the first blocks anyway
        push, pull = (
            lanes + blocks * share_beyond(profile, pattern.num_rows, rows, lanes / count)
            for blocks, profile in zip((own, union), profiles, strict=True)
        )
        moved = (size - 1) / size * (push + pull) * a_block
        whole = Traffic(moved, moved, 0)
        for _ in range(_rounds(union, count, lanes)):
            whole += wire_cost.scheduled(0.0, 0.0, 2, size) + wire_cost.scheduled(0.0, 0.0, 2, size)
        return whole


def _rounds(union: float, count: int, lanes: int) -> int:
    """Return the blocks of the fullest lane when blocks fall into lanes at random, with the first of each lane."""
    longest = -(-count // lanes)
    share = min(1.0, union / count)
    mean = share * (longest - 1)
    spread = math.sqrt(2 * mean * (1 - share) * math.log(max(2, lanes)))
    return min(longest, 1 + math.ceil(mean + spread - 1e-9))


@dataclass(slots=True)
class _Worker:
    """One rank's own blocks, and the current block of every lane as all ranks know it.

    Args:
        data: ``[b, block]`` as it travels, by ``ids``.
        ids: ``[b]`` ascending.
        count: blocks in all; as the number of a next block it means that there is none.
        lanes: number of lanes.
    """

    data: Tensor
    ids: Tensor
    count: int
    lanes: int
    current: Tensor = field(init=False)
    order: Tensor = field(init=False)
    at: Tensor = field(init=False)
    ends: Tensor = field(init=False)
    got: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.current = torch.arange(self.lanes, device=self.ids.device)
        self.order, counts = partition(self.ids % max(1, self.lanes), self.lanes)
        self.ends = counts.cumsum(0)
        self.at = self.ends - counts

    def _heads(self, lanes: Tensor) -> Tensor:
        """Return the next own block of each lane; ``count`` where there is none."""
        at, there = self.at[lanes], self.at[lanes] < self.ends[lanes]
        heads = torch.full_like(lanes, self.count)
        heads[there] = self.ids[self.order[at[there]]]
        return heads

    def send(self, lanes: Tensor, size: int, *, first: bool = False) -> list[Parts]:
        """Return for each aggregator the current blocks that are here, each with the next one in its lane."""
        mine = self._heads(lanes) == self.current[lanes]
        sending = lanes if first else lanes[mine]
        having = lanes[mine]
        blocks = self.data.new_zeros(sending.numel(), self.data.shape[1])
        blocks[mine if first else slice(None)] = self.data[self.order[self.at[having]]]
        self.at[having] += 1
        following = self._heads(sending).to(index_dtype(self.count + 1))
        order, counts = partition(sending % size, size)
        split = counts.tolist()
        pairs = zip(blocks[order].split(split), following[order].split(split), strict=True)
        return [[block, after] for block, after in pairs]

    def take(self, gathered: list[Parts]) -> Tensor:
        """Keep the averages of the current blocks and go on to the next ones; return the lanes that go on."""
        active = (self.current < self.count).nonzero().view(-1)
        for server, (blocks, least) in enumerate(gathered):
            lanes = active[active % len(gathered) == server]
            self.got.append((self.current[lanes], blocks))
            self.current[lanes] = least.long()
        return (self.current < self.count).nonzero().view(-1)

    def result(self) -> tuple[Tensor, Tensor]:
        """Return all blocks that came, ascending."""
        ids = torch.cat([ids for ids, _ in self.got])
        ids, order = ids.sort()
        return ids, torch.cat([blocks for _, blocks in self.got])[order]


class _Aggregator:
    """One rank's lanes: adds up blocks and knows what every worker announced."""

    def __init__(self, rank: int, size: int, lanes: int, count: int, like: Tensor) -> None:
        self.lanes, self.count = torch.arange(lanes, device=like.device)[rank::size], count
        self.announced = torch.full((size, self.lanes.numel()), -1, device=like.device)  # -1: all send at first
        self.like = like
        self.now = self.lanes  # the blocks last added up
        self.booked: list[tuple[Tensor, Tensor]] = []

    def add(self, received: list[Parts], current: Tensor) -> tuple[Tensor, Tensor]:
        """Return the averages of the current blocks of the lanes that go on, and the next number of each lane."""
        now = current[self.lanes]
        active = (now < self.count).nonzero().view(-1)
        total = torch.zeros(
            self.lanes.numel(), self.like.shape[1], dtype=sum_dtype(self.like.dtype), device=self.like.device
        )
        for worker, (blocks, following) in enumerate(received):
            announced = self.announced[worker]
            sent = active[(announced[active] == now[active]) | (announced[active] < 0)]
            total[sent] += blocks
            announced[sent] = following.long()
        self.now = now[active]
        mean = (total[active] / len(received)).to(self.like.dtype)
        return mean, self.announced[:, active].amin(0)

    def book(self, mean: Tensor, low: Tensor) -> None:
        """Note what the rounding of averages lost."""
        if low.dtype != mean.dtype:
            lost = finite(mean - low.to(mean.dtype)) * self.announced.shape[0]
            self.booked.append((self.now, lost))

    def lost(self) -> tuple[Tensor, Tensor]:
        """Return the blocks of this aggregator with what their rounding lost."""
        return torch.cat([ids for ids, _ in self.booked]), torch.cat([lost for _, lost in self.booked])


def _less(ids: Tensor, data: Tensor, lost_ids: Tensor, lost: Tensor) -> tuple[Tensor, Tensor]:
    """Return own blocks less what was lost in others."""
    all_ids, at = torch.unique(torch.cat([ids, lost_ids]), return_inverse=True)
    out = data.new_zeros(all_ids.numel(), data.shape[1])
    return all_ids, out.index_add_(0, at, torch.cat([data, -lost]))


def omnireduce_streaming(
    block: int = BLOCK_ELEMENTS, lanes: int = LANES, values: str = "float32"
) -> OmniReduceStreaming:
    """Make the streaming form of OmniReduce; see ``OmniReduceStreaming``."""
    who = "omnireduce-streaming"
    return OmniReduceStreaming(
        checked_count(block, "block", who), checked_count(lanes, "lanes", who), checked_values(values, who)
    )
