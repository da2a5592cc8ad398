"""Packed to the owner of each part, averaged there, and packed again on the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.expected import mean_bytes
from omnizen.errors import Incompatible, UserError
from omnizen.protocols import Codec, Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.bases import Memoryless
from omnizen.reducers.contribution import checked, finite
from omnizen.reducers.gathered import META_BYTES, mean_of, packed_parts, probed, unpacked
from omnizen.reducers.segments import joined_values, segments
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Packed, Parts, Reduced, Sparsity, State, Step, Traffic


@dataclass(frozen=True, slots=True)
class TwoWay(Memoryless):
    """Cut each tensor in n parts, send each part packed to its owner, average, pack the averages, all-gather them.

    Two payloads a rank instead of ``n - 1``: where many ranks make ``gathered`` dear. Costs a second loss, of which
    the owner answers for: it counts what its averages lost, n times, as not sent, so that error feedback sends it
    later and nothing is lost in the end. Scales and top elements are those of a part, not of the whole tensor.

    Args:
        codec: packs Dense contributions.

    Raises:
        Incompatible: when the codec does not go from Dense to Packed.

    Reference: both directions as in Sattler et al., "Robust and Communication-Efficient Federated Learning from
    Non-IID Data" (STC), IEEE TNNLS 2020; owners for a server as in Tang et al., "DoubleSqueeze", ICML 2019.
    """

    codec: Codec
    takes: ClassVar[tuple[type[Contribution], ...]] = (Dense,)
    agrees: ClassVar[bool] = True
    conserves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not hasattr(self.codec, "encode") or not hasattr(self.codec, "takes"):
            raise UserError(f"TwoWay takes a codec, got {self.codec!r}; catalog.codec(name) makes one")
        if self.codec.takes is not Dense or self.codec.gives is not Packed:
            raise Incompatible("TwoWay", self.codec.name, "a codec from Dense to Packed")

    @property
    def name(self) -> str:
        """The codec's name behind the scheme's."""
        return f"two-way({self.codec.name})"

    @property
    def exact(self) -> bool:
        """Whether the codec is exact."""
        return self.codec.exact

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin the push; the pull begins when the result is waited for."""
        checked(x, self.takes, self.name)
        assert isinstance(x, Dense)
        named_parts = [
            (part.values.reshape(-1).tensor_split(comm.size), at)
            for part, at in segments(Dense(x.values.detach(), x.layout), step)
        ]
        with span("encode", step.name):
            pushed = [
                [self._encode(parts[owner], at, f"{comm.rank}>{owner}") for parts, at in named_parts]
                for owner in range(comm.size)
            ]
        push = comm.all_to_all([packed_parts(packed) for packed in pushed])

        def finish() -> Reduced:
            received = push.wait()
            with span("decode", step.name):
                means = [mean_of(theirs) for theirs in self._by_tensor(received, pushed[comm.rank])]
            with span("encode", step.name):
                packed = [
                    self._encode(mean.values, at, f"{comm.rank}<")
                    for mean, (_, at) in zip(means, named_parts, strict=True)
                ]
            pulled = comm.all_gather(packed_parts(packed)).wait()
            with span("decode", step.name):
                values = self._by_tensor(pulled, packed)
                value = _joined(x, [[part.values for part in owners] for owners in values])
                sent = None if self.exact else self._sent(x, pushed, means, values, comm)
            return Reduced(value, sent, state)

        return Later(finish)

    def _encode(self, part: Tensor, step: Step, way: str) -> Packed:
        made = self.codec.encode(Dense(part), step.named(f"{step.name}/{way}"))
        assert isinstance(made, Packed)
        return made

    def _by_tensor(self, by_rank: Sequence[Parts], like: Sequence[Packed]) -> list[list[Contribution]]:
        """Return what each rank sent, tensor by tensor."""
        return [
            list(ranks) for ranks in zip(*(unpacked(self.codec, parts, like) for parts in by_rank), strict=True)
        ]

    def _sent(
        self,
        x: Dense,
        pushed: Sequence[Sequence[Packed]],
        means: Sequence[Contribution],
        values: Sequence[Sequence[Contribution]],
        comm: Comm,
    ) -> Contribution:
        """Return what arrived of this rank's contribution, less what its own averages lost."""
        own = self._by_tensor([packed_parts(packed) for packed in pushed], pushed[0])
        parts = [[part.values.clone() for part in owners] for owners in own]
        for mine, mean, owners in zip(parts, means, values, strict=True):
            mine[comm.rank] -= finite(mean.values - owners[comm.rank].values) * comm.size
        return _joined(x, parts)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at each rank."""
        part = Sparsity(-(-pattern.num_rows * pattern.width // size), 1, 1.0, itemsize=pattern.itemsize)
        num_streams, num_meta = probed(self.codec, part, flat=True)
        moved = (size - 1) * (mean_bytes(self.codec, part) + META_BYTES * num_meta)
        return wire_cost.scheduled(moved, moved, num_streams + 1, size) + wire_cost.scheduled(
            moved, moved, num_streams + 1, size
        )


def _joined(x: Dense, parts: Sequence[Sequence[Tensor]]) -> Contribution:
    tensors = [Dense(torch.cat(list(owners))) for owners in parts]
    whole = joined_values(x, list(tensors))
    return Dense(whole.values.view(x.values.shape), x.layout)


def two_way(codec: Codec) -> TwoWay:
    """Make the average that is packed in both directions; see ``TwoWay``."""
    return TwoWay(codec)
