"""Recursive doubling: pairs of ranks add their sums, then pairs of pairs, and so on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar

from omnizen.codecs.cast import checked_values, narrow
from omnizen.codecs.coo import index_bytes, index_dtype
from omnizen.kernels.merge import merge, sum_dtype
from omnizen.protocols import Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.bases import WireFormat
from omnizen.reducers.contribution import as_tensor, checked, finite, with_values
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Parts, Reduced, Sparse, Sparsity, State, Step, Traffic


@dataclass(frozen=True, slots=True)
class SparCml(WireFormat):
    """Sum along a hypercube: ``sum over i < log2 n of gamma_(2^i) rho d M`` bytes each way, in log2 n steps.

    Cheapest where steps are dear (few, latency-bound rows) or rows overlap little on few ranks; a row that all
    ranks have is received log2 n times. Sums that would be larger as rows than as a whole tensor travel whole.
    Ranks beyond a power of two hand their rows to a neighbour first and get the result from it last. Waits must
    come in the same order on all ranks, because later steps start in the wait.

    16-bit gradients travel as float32, because partial sums must not be rounded; with ``values`` of 16 bits each
    sum is rounded once before it travels, and the lowest rank that holds the sum counts the rounding as not sent.

    Args:
        values: ``"float32"`` sends sums as they are, ``"float16"`` and ``"bfloat16"`` 16 bits of them.

    Reference: Renggli et al., "SparCML", SC 2019 (SSAR_Recursive_double); equation 2 of Zen, OSDI 2025.
    """

    values: str = "float32"
    name: ClassVar[str] = "sparcml"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Sparse,)

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin the first exchange; the others begin when the result is waited for."""
        checked(x, self.takes, self.name)
        assert isinstance(x, Sparse)
        run = _Run(self.values, x, comm, step)
        run.send()
        return Later(lambda: run.finish(state))

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at the busiest rank by Zen's equation 2, for any number of ranks."""
        itemsize = max(4, pattern.itemsize) if self.exact else min(2, pattern.itemsize)
        whole_bytes = pattern.num_rows * pattern.width * itemsize
        row_bytes = index_bytes(pattern.num_rows) + pattern.width * itemsize

        @cache
        def payload(ranks: int | None) -> float | None:
            return None if ranks is None else min(pattern.union_rows(ranks) * row_bytes, whole_bytes)

        busiest = Traffic(0.0, 0.0, 0)
        for steps in _parts(size):
            total = Traffic(0.0, 0.0, 0)
            for receives, sends in steps:
                total += wire_cost.hop(payload(receives), payload(sends), 2)
            busiest = Traffic(
                max(busiest.rx_bytes, total.rx_bytes), max(busiest.tx_bytes, total.tx_bytes), total.rounds
            )
        return busiest


@dataclass(frozen=True, slots=True)
class Hop:
    """One rank's part in one step.

    Args:
        to: rank to send to, or None.
        source: rank to receive from, or None.
        sends: how many ranks' rows are in what is sent, or None.
        receives: how many ranks' rows are in what is received, or None.
        books: whether this rank answers for the rounding of the sum it holds.
        last: whether the result is handed out, so that all ranks must hold the same rounding of it.
    """

    to: int | None = None
    source: int | None = None
    sends: int | None = None
    receives: int | None = None
    books: bool = False
    last: bool = False


def hops(rank: int, size: int) -> list[Hop]:
    """Return what a rank does in each step; all ranks have the same number of steps.

    Example:
        >>> [(hop.to, hop.source) for hop in hops(0, 3)], [(hop.to, hop.source) for hop in hops(2, 3)]
        ([(1, None), (None, None), (None, 1)], [(None, None), (1, 1), (None, None)])
    """
    levels = size.bit_length() - 1
    folded = size - (1 << levels)  # ranks 2i hand over to 2i + 1, for i < folded
    paired = rank < 2 * folded
    idle = paired and rank % 2 == 0
    corner = rank // 2 if paired else rank - folded

    def real(corner: int) -> int:
        return 2 * corner + 1 if corner < folded else corner + folded

    def ranks_below(corner: int, level: int) -> int:
        first = corner >> level << level
        return (1 << level) + min(max(folded - first, 0), 1 << level)

    steps = []
    if folded:
        give, take = Hop(to=rank + 1, sends=1, books=True), Hop(source=rank - 1, receives=1)
        steps.append((give if idle else take) if paired else Hop())
    for level in range(levels):
        other = corner ^ (1 << level)
        peer, lowest = real(other), corner % (1 << level) == 0
        meet = Hop(peer, peer, ranks_below(corner, level), ranks_below(other, level), books=lowest)
        steps.append(Hop() if idle else meet)
    if folded:
        give, take = Hop(to=rank - 1, sends=size, books=corner == 0, last=True), Hop(source=rank + 1, receives=size)
        bystander = Hop(books=corner == 0, last=True)
        steps.append((take if idle else give) if paired else bystander)
    return steps


@lru_cache(maxsize=64)
def _parts(size: int) -> frozenset[tuple[tuple[int | None, int | None], ...]]:
    """Return what ranks receive and send in each step; ranks that do alike are one part."""
    return frozenset(tuple((hop.receives, hop.sends) for hop in hops(rank, size)) for rank in range(size))


class _Run:
    """One reduction under way at one rank."""

    def __init__(self, values: str, x: Sparse, comm: Comm, step: Step) -> None:
        self.values, self.x, self.comm, self.step = values, x, comm, step
        wide = sum_dtype(x.values.dtype)
        self.held = self._smaller(Sparse(x.indices, x.values.detach().to(wide), x.num_rows))
        self.booked: Contribution = Sparse(x.indices[:0], x.values.detach()[:0].to(wide), x.num_rows)
        self.todo = hops(comm.rank, comm.size)
        self.pending: Pending[dict[int, Parts]] | None = None

    def send(self) -> None:
        """Start the next exchange, if one is left."""
        if not self.todo:
            return
        hop = self.todo[0]
        with span("encode", self.step.name):
            if hop.to is not None or hop.last:
                self._round(hop.books)
            low = narrow(self.held.values, self.values).contiguous()
            small = index_dtype(self.x.num_rows)
            rows = self.held.indices if isinstance(self.held, Sparse) else self.x.indices[:0]
            parts = [low, rows.to(small)]
        out = {} if hop.to is None else {hop.to: parts}
        sources = [] if hop.source is None else [hop.source]
        like = [low.new_empty(0, self.x.width), rows.new_empty(0, dtype=small)]
        self.pending = self.comm.exchange(out, sources, like)

    def finish(self, state: State) -> Reduced:
        """Carry all exchanges through."""
        while self.todo:
            hop = self.todo[0]
            assert self.pending is not None
            received = self.pending.wait()
            if hop.source is not None:
                with span("decode", self.step.name):
                    theirs = self._read(received[hop.source])
                    if hop.to is None:  # a fold takes their rows on top; the last hop takes their result instead
                        self.held = self._add(self.held, theirs) if hop.receives == 1 else theirs
                    else:
                        low_first = (theirs, self.held) if hop.source < self.comm.rank else (self.held, theirs)
                        self.held = self._add(*low_first)
            del self.todo[0]
            self.send()
        dtype, size = self.x.values.dtype, self.comm.size
        value = with_values(self.held, (self.held.values / size).to(dtype))
        if self.values == "float32":
            return Reduced(value, None, state)
        lost = with_values(self.booked, -self.booked.values)
        sent = self._add(
            Sparse(self.x.indices, self.x.values.detach().to(lost.values.dtype), self.x.num_rows), lost
        )
        return Reduced(value, with_values(sent, sent.values.to(dtype)), state)

    def _round(self, books: bool) -> None:
        """Hold what the others will read, and answer for the difference."""
        exact = self.held.values
        low = narrow(exact, self.values)
        if low.dtype == exact.dtype:
            return
        self.held = with_values(self.held, low.to(exact.dtype))
        if books:
            lost = with_values(self.held, finite(exact - self.held.values))
            self.booked = self._add(self.booked, lost)

    def _read(self, parts: Parts) -> Contribution:
        values, rows = parts
        values = values.to(self.held.values.dtype)
        whole = rows.numel() == 0 and values.shape[0] == self.x.num_rows
        return Dense(values) if whole else Sparse(rows.long(), values, self.x.num_rows)

    def _add(self, a: Contribution, b: Contribution) -> Contribution:
        """Add in this order."""
        if isinstance(a, Sparse) and isinstance(b, Sparse):
            rows, values = merge([a.indices, b.indices], [a.values, b.values])
            return self._smaller(Sparse(rows, values, self.x.num_rows))
        return Dense(as_tensor(a) + as_tensor(b))

    def _smaller(self, rows: Sparse) -> Contribution:
        """Return the whole tensor where that is no larger than its rows."""
        row_values_bytes = self.x.width * narrow(rows.values[:0], self.values).element_size()
        rows_bytes = rows.indices.numel() * (index_bytes(self.x.num_rows) + row_values_bytes)
        return Dense(rows.to_dense()) if rows_bytes >= self.x.num_rows * row_values_bytes else rows


def sparcml(values: str = "float32") -> SparCml:
    """Make recursive doubling; see ``SparCml``."""
    return SparCml(checked_values(values, "sparcml"))
