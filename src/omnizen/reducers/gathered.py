"""Everybody's packed contribution to everybody: one scheme for every codec whose payloads cannot be added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.errors import Incompatible, UserError
from omnizen.kernels.merge import merge, sum_dtype
from omnizen.protocols import Codec, Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.contribution import checked
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
class Gathered:
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

    def init(self, like: Contribution) -> State:
        """Nothing is kept between steps."""
        del like
        return State()

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to average."""
        checked(x, self.takes, self.name)
        with span("encode", step.name):
            packed = [self._encode(part, at, comm.rank) for part, at in segments(_detached(x), step)]
        pending = comm.all_gather([part for each in packed for part in _parts(each)])

        def finish() -> Reduced:
            gathered = pending.wait()
            with span("decode", step.name):
                values, sent = self._average(gathered, packed, comm.rank)
            value = joined_values(x, values)
            whole = None if self.exact else joined_values(x, sent)
            return Reduced(value, whole, state)

        return Later(finish)

    def _encode(self, part: Contribution, step: Step, rank: int) -> Packed:
        made = self.codec.encode(part, step.named(f"{step.name}/{rank}"))
        if not isinstance(made, Packed):
            raise UserError(f"{self.codec.name} declares Packed and gave {type(made).__name__}")
        return made

    def _average(
        self, gathered: list[Parts], packed: list[Packed], rank: int
    ) -> tuple[list[Contribution], list[Contribution]]:
        """Return the averages and what this rank sent, tensor by tensor."""
        values: list[Contribution] = []
        sent: list[Contribution] = []
        place = 0
        for mine in packed:
            num_parts = len(mine.streams) + 1
            theirs = [self._decode(parts[place : place + num_parts], mine.codec) for parts in gathered]
            place += num_parts
            values.append(_mean(theirs))
            sent.append(theirs[rank])
        return values, sent

    def _decode(self, parts: Parts, codec: str) -> Contribution:
        *streams, meta = parts
        back = self.codec.decode(Packed(tuple(streams), tuple(meta.tolist()), codec))
        assert isinstance(back, Dense | Sparse)
        return back

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at each rank, at the middle of the codec's range."""
        low, high = self.codec.nbytes(pattern)
        num_streams, num_meta = self._probed(pattern)
        moved = (size - 1) * ((low + high) / 2 + META_BYTES * num_meta)
        return wire_cost.scheduled(moved, moved, num_streams + 1, size)

    def _probed(self, pattern: Sparsity) -> tuple[int, int]:
        """Return how many streams and integers the codec makes of such a tensor, from a small one."""
        rows = min(PROBE_ROWS, pattern.num_rows)
        dtypes = {2: torch.float16, 8: torch.float64}
        values = torch.ones(rows, pattern.width, dtype=dtypes.get(pattern.itemsize, torch.float32))
        probe = Dense(values) if self.codec.takes is Dense else Sparse(torch.arange(rows), values, pattern.num_rows)
        made = self._encode(probe, Step(0), 0)
        return len(made.streams), len(made.meta)


def _detached(x: Contribution) -> Contribution:
    return (
        Dense(x.values.detach(), x.layout)
        if isinstance(x, Dense)
        else Sparse(x.indices, x.values.detach(), x.num_rows)
    )


def _parts(packed: Packed) -> Parts:
    device = packed.streams[0].device if packed.streams else None
    return [*packed.streams, torch.tensor(packed.meta, dtype=torch.int64, device=device)]


def _mean(parts: list[Contribution]) -> Contribution:
    first = parts[0]
    if isinstance(first, Sparse):
        rows = [part for part in parts if isinstance(part, Sparse)]
        indices, total = merge([part.indices for part in rows], [part.values for part in rows])
        return Sparse(indices, total.div_(len(rows)).to(first.values.dtype), first.num_rows)
    assert isinstance(first, Dense)
    sum_of: Tensor = torch.zeros_like(first.values, dtype=sum_dtype(first.values.dtype))
    for part in parts:
        assert isinstance(part, Dense)
        sum_of += part.values
    return Dense(sum_of.div_(len(parts)).to(first.values.dtype))


def gathered(codec: Codec) -> Gathered:
    """Make the all-gather of packed contributions; see ``Gathered``."""
    return Gathered(codec)
