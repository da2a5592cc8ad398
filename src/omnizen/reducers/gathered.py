"""Everybody's packed contribution to everybody: one scheme for every codec whose payloads cannot be added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from omnizen.codecs.expected import mean_bytes
from omnizen.errors import Incompatible, UserError
from omnizen.kernels.merge import merge, sum_dtype
from omnizen.protocols import Codec, Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.bases import Memoryless
from omnizen.reducers.contribution import checked, with_values
from omnizen.reducers.segments import joined_values, segments
from omnizen.spans import span
from omnizen.types import (
    Contribution,
    Dense,
    Packed,
    Parts,
    Reduced,
    Sparse,
    Sparsity,
    State,
    Step,
    Traffic,
)

META_BYTES = 8
"""A codec's small integers travel as int64."""
PROBE_ROWS = 8


@dataclass(frozen=True, slots=True)
class Gathered(Memoryless):
    """Encode, all-gather, decode every rank's, average: ``(n - 1)`` times one rank's packed bytes each way.

    The only way to use codecs such as signs or QSGD, whose payloads do not add up; cheaper than a ring all-reduce
    only while a payload is less than ``2 / n`` of the tensor. Each rank draws its own random numbers, so unbiased
    rounding errors average out over ranks. All tensors of a flat bucket are packed one by one (each with its own
    scale) and travel in one message.

    Args:
        codec: packs Dense or Sparse contributions.

    Raises:
        Incompatible: when the codec gives no packed payload.

    Reference: all-gather of compressed gradients as in Xu et al., "GRACE: A Compressed Communication Framework for
    Distributed Machine Learning", ICDCS 2021.
    """

    codec: Codec
    agrees: ClassVar[bool] = True
    conserves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not hasattr(self.codec, "encode") or not hasattr(self.codec, "takes"):
            raise UserError(f"Gathered takes a codec, got {self.codec!r}; catalog.codec(name) makes one")
        if self.codec.takes not in (Dense, Sparse) or self.codec.gives is not Packed:
            raise Incompatible("Gathered", self.codec.name, "a codec from Dense or Sparse to Packed")

    @property
    def name(self) -> str:
        """The codec's name behind the scheme's."""
        return f"gathered({self.codec.name})"

    @property
    def takes(self) -> tuple[type[Contribution], ...]:
        """What the codec takes."""
        return (Dense,) if self.codec.takes is Dense else (Sparse,)

    @property
    def exact(self) -> bool:
        """Whether the codec is exact."""
        return self.codec.exact

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to average."""
        checked(x, self.takes, self.name)
        with span("encode", step.name):
            packed = [
                self._encode(part, at, comm.rank) for part, at in segments(with_values(x, x.values.detach()), step)
            ]
        pending = comm.all_gather(packed_parts(packed))

        def finish() -> Reduced:
            gathered = pending.wait()
            with span("decode", step.name):
                by_rank = [unpacked(self.codec, parts, packed) for parts in gathered]
                values = [mean_of(theirs) for theirs in zip(*by_rank, strict=True)]
            whole = None if self.exact else joined_values(x, by_rank[comm.rank])
            return Reduced(joined_values(x, values), whole, state)

        return Later(finish)

    def _encode(self, part: Contribution, step: Step, rank: int) -> Packed:
        made = self.codec.encode(part, step.named(f"{step.name}/{rank}"))
        if not isinstance(made, Packed):
            raise UserError(f"{self.codec.name} declares Packed and gave {type(made).__name__}")
        return made

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at each rank, at the mean of the codec's payloads."""
        num_streams, num_meta = probed(self.codec, pattern)
        moved = (size - 1) * (mean_bytes(self.codec, pattern) + META_BYTES * num_meta)
        return wire_cost.scheduled(moved, moved, num_streams + 1, size)


def packed_parts(packed: Sequence[Packed]) -> Parts:
    """Return payloads as parts of one message: the streams of each, then its metadata."""
    parts: Parts = []
    for each in packed:
        device = each.streams[0].device if each.streams else None
        parts += [*each.streams, torch.tensor(each.meta, dtype=torch.int64, device=device)]
    return parts


def unpacked(codec: Codec, parts: Parts, like: Sequence[Packed]) -> list[Contribution]:
    """Return what ``packed_parts`` packed, decoded; ``like`` says how many streams each payload has."""
    found: list[Contribution] = []
    place = 0
    for each in like:
        *streams, meta = parts[place : place + len(each.streams) + 1]
        place += len(each.streams) + 1
        back = codec.decode(Packed(tuple(streams), tuple(meta.tolist()), each.codec))
        assert isinstance(back, Dense | Sparse)
        found.append(back)
    return found


def probed(codec: Codec, pattern: Sparsity, *, flat: bool = False) -> tuple[int, int]:
    """Return how many streams and integers a codec makes of such a tensor, from a small one."""
    rows = min(PROBE_ROWS, pattern.num_rows)
    dtypes = {2: torch.float16, 8: torch.float64}
    values = torch.ones(rows, pattern.width, dtype=dtypes.get(pattern.itemsize, torch.float32))
    if codec.takes is Dense:
        made = codec.encode(Dense(values.view(-1) if flat else values), Step(0))
    else:
        made = codec.encode(Sparse(torch.arange(rows), values, pattern.num_rows), Step(0))
    assert isinstance(made, Packed)
    return len(made.streams), len(made.meta)


def mean_of(parts: Sequence[Contribution]) -> Contribution:
    """Return the average of all ranks' contributions, added in rank order."""
    first = parts[0]
    if isinstance(first, Sparse):
        rows = [part for part in parts if isinstance(part, Sparse)]
        indices, total = merge([part.indices for part in rows], [part.values for part in rows])
        return Sparse(indices, total.div_(len(rows)).to(first.values.dtype), first.num_rows)
    sum_of = torch.zeros_like(first.values, dtype=sum_dtype(first.values.dtype))
    for part in parts:
        sum_of += part.values
    return Dense(sum_of.div_(len(parts)).to(first.values.dtype))


def gathered(codec: Codec) -> Gathered:
    """Make the all-gather of packed contributions; see ``Gathered``."""
    return Gathered(codec)
