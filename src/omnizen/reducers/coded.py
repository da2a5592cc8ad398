"""Rows whose places, and perhaps values, travel coded: the bytes that plain indices and exponents waste."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.cast import checked_values, narrow
from omnizen.codecs.expected import mean_bytes
from omnizen.codecs.index.golomb import golomb
from omnizen.codecs.ownership import Ownership
from omnizen.codecs.paired import paired
from omnizen.codecs.values.exponent_pack import exponent_pack
from omnizen.kernels.merge import merge
from omnizen.kernels.rows_at import rows_at
from omnizen.protocols import Codec, Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.bases import WireFormat
from omnizen.reducers.contribution import checked
from omnizen.reducers.gathered import META_BYTES, packed_parts, probed, unpacked
from omnizen.reducers.owned import less_rounding
from omnizen.spans import span
from omnizen.types import Contribution, Imbalance, Packed, Parts, Reduced, Sparse, Sparsity, State, Step, Traffic


@dataclass(frozen=True, slots=True)
class Coded(WireFormat):
    """What the two ways below share.

    Args:
        codec: packs rows without loss.
        name: scheme name.
        values: ``"float32"`` codes values as they are, ``"float16"`` and ``"bfloat16"`` 16 bits of them.
    """

    codec: Codec
    name: str
    values: str = "float32"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Sparse,)

    def _encode(self, rows: Tensor, values: Tensor, num_rows: int, step: Step) -> Packed:
        packed = self.codec.encode(Sparse(rows, values, num_rows), step)
        assert isinstance(packed, Packed)
        return packed

    def _decode(self, by_rank: Sequence[Parts], like: Packed) -> list[Sparse]:
        found = [unpacked(self.codec, parts, [like])[0] for parts in by_rank]
        return [rows for rows in found if isinstance(rows, Sparse)]

    def _message(self, num_rows: float, rows: float, pattern: Sparsity) -> tuple[float, float, int]:
        """Return the mean bytes of a message with some of its possible rows, those of its metadata, its parts."""
        itemsize = pattern.itemsize if self.values == "float32" else min(2, pattern.itemsize)
        possible = max(1, round(num_rows))
        of = Sparsity(possible, pattern.width, min(1.0, rows / possible), itemsize=itemsize)
        num_streams, num_meta = probed(self.codec, of)
        return mean_bytes(self.codec, of), META_BYTES * num_meta, num_streams + 1


@dataclass(frozen=True, slots=True)
class CodedRows(Coded):
    """All-gather the coded rows and sum them: ``(n - 1)`` times one rank's coded rows each way.

    Saves, beside ``agsparse``, three quarters of the indices at 1 % density: 3/8 of the bytes of single elements.
    Costs coding one's own rows and reading everybody's.

    Reference: Xu et al., "DeepReduce: A Sparse-tensor Communication Framework for Federated Deep Learning",
    NeurIPS 2021.
    """

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to average."""
        checked(x, self.takes, self.name)
        assert isinstance(x, Sparse)
        with span("encode", step.name):
            low = narrow(x.values.detach(), self.values)
            packed = self._encode(x.indices, low, x.num_rows, step)
        pending = comm.all_gather(packed_parts([packed]))

        def finish() -> Reduced:
            gathered = pending.wait()
            with span("decode", step.name):
                value = _mean(self._decode(gathered, packed), x.values.dtype)
            rounded = low.dtype != x.values.dtype
            sent = Sparse(x.indices, low.to(x.values.dtype), x.num_rows) if rounded else None
            return Reduced(value, sent, state)

        return Later(finish)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at each rank, for rows that lie at random."""
        coded, meta, parts = self._message(pattern.num_rows, pattern.rows, pattern)
        moved = (size - 1) * (coded + meta)
        return wire_cost.scheduled(moved, moved, parts, size)


@dataclass(frozen=True, slots=True)
class CodedOwners(Coded):
    """Push coded rows to their owners, average there, pull all averages coded.

    Owners are cyclic (row % n), so that an owner's rows count without gaps and distances between them take the same
    few bits whatever n. Beside Zen's pull with a bit for each possible row this never takes more and takes less the
    fewer rows there are; beside indices, three quarters less at 1 %. Costs a call of the codec for each message.

    Reference: Wang et al., "Zen", OSDI 2025, for owners; Golomb 1966 for the places that travel.
    """

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin the push; the pull begins when the result is waited for."""
        checked(x, self.takes, self.name)
        assert isinstance(x, Sparse)
        owners = Ownership("cyclic", x.num_rows, comm.size)
        with span("encode", step.name):
            low = narrow(x.values.detach(), self.values)
            divided = owners.divide(x.indices, torch.int64)
            counts = divided.counts.tolist()
            of_owner = zip(divided.rows.split(counts), rows_at(low, divided.order).split(counts), strict=True)
            pushed = [
                self._encode(owners.position(rows, owner), values, owners.num_owned(owner), step)
                for owner, (rows, values) in enumerate(of_owner)
            ]
        push = comm.all_to_all([packed_parts([packed]) for packed in pushed])

        def finish() -> Reduced:
            received = push.wait()
            with span("decode", step.name):
                mean = _mean(self._decode(received, pushed[0]), x.values.dtype)
            with span("encode", step.name):
                packed = self._encode(mean.indices, narrow(mean.values, self.values), mean.num_rows, step)
            pulled = comm.all_gather(packed_parts([packed])).wait()
            with span("decode", step.name):
                arrived = self._decode(pulled, packed)
                whole = [owners.rows_at(part.indices, owner) for owner, part in enumerate(arrived)]
                rows, averages = merge(whole, [part.values for part in arrived])
                value = Sparse(rows, averages.to(x.values.dtype), x.num_rows)
                sent = None
                if low.dtype != x.values.dtype:
                    own = Sparse(whole[comm.rank], arrived[comm.rank].values.to(x.values.dtype), x.num_rows)
                    sent = less_rounding(x, low.to(x.values.dtype), mean, own, comm.size)
            return Reduced(value, sent, state)

        return Later(finish)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at the busiest rank, for rows that lie at random among an owner's."""
        uneven = pattern.imbalance.get("cyclic", Imbalance())
        total = Traffic(0.0, 0.0, 0)
        for rows in (pattern.rows, pattern.union_rows(size)):
            coded, meta, parts = self._message(pattern.num_rows / size, rows / size, pattern)
            rx, tx = ((size - 1) * (way * coded + meta) for way in (uneven.rx, uneven.tx))
            total += wire_cost.scheduled(rx, tx, parts, size)
        return total


def _mean(by_rank: Sequence[Sparse], dtype: torch.dtype) -> Sparse:
    rows, total = merge([part.indices for part in by_rank], [part.values for part in by_rank])
    return Sparse(rows, total.div_(len(by_rank)).to(dtype), by_rank[0].num_rows)


def coded(way: str = "all-gather", places_only: bool = True, values: str = "float32") -> Coded:
    """Make a reducer of coded rows; see ``CodedRows`` and ``CodedOwners``.

    Args:
        way: ``"all-gather"`` or ``"owners"``.
        places_only: code where rows are; else the exponents of their values too (not those of float16, which has
            no more than five bits of them).
        values: wire format.
    """
    codec = golomb() if places_only or values == "float16" else paired(golomb(), exponent_pack())
    coding = "golomb" if places_only else "packed"
    wire = checked_values(values, "coded")
    if way == "owners":
        return CodedOwners(codec, f"zen-cyclic-{coding}", wire)
    return CodedRows(codec, f"agsparse-{coding}", wire)
