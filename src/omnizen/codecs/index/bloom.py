"""Places of rows in a Bloom filter, and three ways to deal with rows that it wrongly lets through."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from omnizen.codecs.given import kind, packed_by
from omnizen.codecs.index.ordered import distances
from omnizen.codecs.pipe import Pipeable
from omnizen.errors import UserError
from omnizen.kernels.bits import pack_bits
from omnizen.kernels.bloom import bloom_cover, bloom_places, bloom_query
from omnizen.kernels.owner import MASK32, mix32
from omnizen.types import Packed, Payload, Sparse, Sparsity, Step

Policy = Literal["p0", "p1", "p2"]
MOST_ROWS, LEAST_BITS, MOST_BITS = 2**32, 256, 2**31
DRAW = 0x9E3779B1
"""Odd; makes the order in which rows are drawn from the seed of the filter."""


def filter_size(count: int, num_rows: int, share: float) -> tuple[int, int]:
    """Return the bits and the hashes of a filter that lets ``share * count / num_rows`` of other rows through.

    Example:
        >>> filter_size(1000, 100_000, 0.1)
        (14427, 10)
    """
    if count == 0:
        return 0, 0
    hashes = max(1, math.ceil(-math.log2(share * count / num_rows)))
    return max(LEAST_BITS, math.ceil(hashes * count / math.log(2))), hashes


@dataclass(frozen=True, slots=True)
class Bloom(Pipeable):
    """Send rows' values and a Bloom filter of their places, which the receiver asks about every row of the tensor.

    Saves half of 4-byte indices at 1 % density (14.4 bits an index). Golomb's code saves more (8.1) and unpacks
    faster on a processor; this is for comparison, and for machines that hash in parallel. Rows that the filter
    wrongly lets through are dealt with by policy:

    - ``"p0"``: the sender asks its own filter and sends zeros for those rows too. Exact: the receiver drops what
      is all ``+0.0``, and a row that is there but all zero travels as ``-0.0``. With a lossy codec of values, rows
      that become all zero are dropped.
    - ``"p1"``: as many rows as are there are drawn from those let through, by a seed that travels along; drawn rows
      that are not there get zeros, rows not drawn are lost.
    - ``"p2"``: the same, but rows are drawn from conflict sets, the smallest first; see ``kernels.bloom``.

    Under p1 and p2 a contribution with values that are not finite goes by p0, so that they arrive.

    Args:
        policy: ``"p0"``, ``"p1"`` or ``"p2"``.
        share: rows wrongly let through, as a fraction of those that are there.

    Example:
        >>> rows = Sparse(torch.tensor([3, 500]), torch.ones(2, 1), num_rows=1000)
        >>> bloom("p0").decode(bloom("p0").encode(rows, Step(0))).indices
        tensor([  3, 500])

    Reference: Xu et al., "DeepReduce", NeurIPS 2021, section 4; their policies p1 and p2 send the dense gradient's
    values of wrong rows, which rows alone do not hold.
    """

    policy: Policy
    share: float
    takes: ClassVar[type[Payload]] = Sparse
    gives: ClassVar[type[Payload]] = Packed
    summable: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The codec's name in the catalogue."""
        return f"bloom-{self.policy}"

    @property
    def exact(self) -> bool:
        """Whether no row is lost."""
        return self.policy == "p0"

    @property
    def unbiased(self) -> bool:
        """Whether no row is lost."""
        return self.exact

    def encode(self, payload: Payload, step: Step) -> Packed:
        """Pack into values of the rows that the receiver will find, and the filter."""
        rows = kind(payload, Sparse, self.name)
        distances(rows, self.name)
        num_bits, hashes = filter_size(rows.indices.numel(), rows.num_rows, self.share)
        if rows.num_rows > MOST_ROWS or num_bits >= MOST_BITS:
            raise UserError(f"{self.name}: a filter for {rows.num_rows} rows is too much; use another index codec")
        seed = int(torch.randint(0, MASK32, (), generator=step.shared_rng()))
        bits = pack_bits(bloom_places(rows.indices, num_bits, hashes, seed).view(-1), num_bits)
        values = rows.values.detach()
        policy: Policy = self.policy if bool(torch.isfinite(values).all()) else "p0"
        meta = (rows.num_rows, rows.indices.numel(), num_bits, hashes, seed, int(policy[1]))
        found = self._found(bits, meta)
        sent = values.new_zeros(found.numel(), rows.width)
        at = torch.searchsorted(found, rows.indices).clamp_(max=max(0, found.numel() - 1))
        there = found[at] == rows.indices
        if policy == "p0":
            values = torch.where(_blank(values)[:, None], -values.abs(), values)
        sent[at[there]] = values[there]
        return Packed((sent, bits), meta, self.name)

    def decode(self, payload: Payload) -> Sparse:
        """Return the rows that are there (p0), or those that were drawn."""
        packed = packed_by(payload, self.name)
        values, bits = packed.streams
        found = self._found(bits, packed.meta)
        if found.numel() != values.shape[0]:
            raise UserError(f"{self.name}: damaged payload: {values.shape[0]} rows for {found.numel()} places")
        if packed.meta[-1] == 0:
            kept = ~_blank(values)
            found, values = found[kept], values[kept]
        return Sparse(found, values, packed.meta[0])

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the least and the most bytes that one filter in a million takes, for finite values.

        Under p0 both are as far from what it takes on average. Under p1 and p2 as many rows travel as there are.
        """
        count = round(pattern.rows)
        bits, hashes = filter_size(count, pattern.num_rows, self.share)
        width, size = pattern.width * pattern.itemsize, -(-bits // 8)
        low = high = float(count * width + size)
        if self.policy == "p0" and count:
            wrong = self.share * count
            fuller = math.exp(5 * hashes * 0.56 / math.sqrt(bits))  # more bits are set than on average
            spread = wrong * (fuller - 1) + 5 * math.sqrt(wrong * fuller) + 5
            low += max(0, wrong - spread) * width
            high = min(pattern.num_rows, count + wrong + spread) * width + size
        return low, high

    def _found(self, bits: Tensor, meta: tuple[int, ...]) -> Tensor:
        """Return the rows that sender and receiver both find, ascending."""
        num_rows, count, num_bits, hashes, seed, policy = meta
        if count == 0:
            return torch.empty(0, dtype=torch.int64, device=bits.device)
        found = bloom_query(bits, num_bits, hashes, seed, num_rows)
        if policy == 0:
            return found
        if found.numel() < count:
            raise UserError(f"{self.name}: damaged payload: {found.numel()} places for {count} rows")
        order = torch.argsort(mix32(found ^ (seed * DRAW & MASK32)), stable=True)
        if policy == 1:
            return found[order[:count].sort().values]
        rank = torch.empty_like(order)
        rank[order] = torch.arange(order.numel(), device=order.device)
        return found[bloom_cover(bloom_places(found, num_bits, hashes, seed), rank, count)]


def _blank(values: Tensor) -> Tensor:
    """Return which rows hold nothing but ``+0.0``, ``[k]`` bool."""
    return ((values == 0) & ~torch.signbit(values)).all(1)


def bloom(policy: Policy = "p0", share: float = 0.1) -> Bloom:
    """Make the codec of rows with a Bloom filter of their places; see ``Bloom``."""
    if policy not in ("p0", "p1", "p2"):
        raise UserError(f"bloom: policy: allowed: p0, p1, p2; got {policy!r}")
    if not 0 < share <= 1:
        raise UserError(f"bloom: share must be above 0 and at most 1, got {share}")
    return Bloom(policy, share)
