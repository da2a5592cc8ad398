"""One codec for the places of rows and another for their values: DeepReduce's two streams."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from omnizen.codecs.expected import mean_bytes
from omnizen.codecs.given import kind, packed_by
from omnizen.codecs.pipe import Pipeable
from omnizen.errors import UserError
from omnizen.protocols import Codec
from omnizen.types import Dense, Packed, Payload, Sparse, Sparsity, Step


@dataclass(frozen=True, slots=True)
class Paired(Pipeable):
    """The index codec says where rows are; the value codec packs their values, the index codec's first stream.

    Saves what both save. Exact or unbiased when both are.

    Args:
        index: takes ``Sparse``; its first stream is the values.
        value: takes ``Dense``, gives ``Packed``.

    Reference: Xu et al., "DeepReduce: A Sparse-tensor Communication Framework for Federated Deep Learning",
    NeurIPS 2021.
    """

    index: Codec
    value: Codec
    takes: ClassVar[type[Payload]] = Sparse
    gives: ClassVar[type[Payload]] = Packed
    summable: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Both names, in order."""
        return f"{self.index.name}+{self.value.name}"

    @property
    def unbiased(self) -> bool:
        """Whether both are."""
        return self.index.unbiased and self.value.unbiased

    @property
    def exact(self) -> bool:
        """Whether both are."""
        return self.index.exact and self.value.exact

    def encode(self, payload: Payload, step: Step) -> Packed:
        """Pack places and values into the streams of both codecs, values first."""
        places = kind(self.index.encode(payload, step), Packed, self.name)
        values = kind(self.value.encode(Dense(places.streams[0]), step), Packed, self.name)
        streams = (*values.streams, *places.streams[1:])
        return Packed(streams, (len(values.streams), len(values.meta), *values.meta, *places.meta), self.name)

    def decode(self, payload: Payload) -> Sparse:
        """Return the rows."""
        packed = packed_by(payload, self.name)
        streams, (num_streams, num_meta, *meta) = packed.streams, packed.meta
        values = Packed(streams[:num_streams], tuple(meta[:num_meta]), self.value.name)
        back = kind(self.value.decode(values), Dense, self.name).values
        places = Packed((back, *streams[num_streams:]), tuple(meta[num_meta:]), self.index.name)
        return kind(self.index.decode(places), Sparse, self.name)

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the least and the most bytes: those of the places, and of the values that go with them."""
        places = self.index.nbytes(replace(pattern, width=0))
        with_byte = self.index.nbytes(replace(pattern, width=1, itemsize=1))  # one byte a row tells the rows
        low, high = (
            at + self.value.nbytes(_values(one - at, pattern))[end]
            for end, (at, one) in enumerate(zip(places, with_byte, strict=True))
        )
        return low, high

    def mean_bytes(self, pattern: Sparsity) -> float:
        """Return the mean bytes of the places, and of the values that go with them."""
        places = mean_bytes(self.index, replace(pattern, width=0))
        rows = mean_bytes(self.index, replace(pattern, width=1, itemsize=1)) - places
        return places + mean_bytes(self.value, _values(rows, pattern))


def _values(rows: float, pattern: Sparsity) -> Sparsity:
    return Sparsity(round(rows), pattern.width, 1.0, itemsize=pattern.itemsize)


def paired(index: Codec, value: Codec) -> Paired:
    """Pack places with one codec and values with another; see ``Paired``.

    Raises:
        UserError: the first does not take rows, or the second does not take their values.

    Example:
        >>> from omnizen.codecs.cast import cast; from omnizen.codecs.index.golomb import golomb
        >>> paired(golomb(), cast("bfloat16")).name
        'golomb+cast-bfloat16'
    """
    for role, codec, takes in (("index", index, Sparse), ("value", value, Dense)):
        if not hasattr(codec, "gives"):
            raise UserError(f"paired() is made of codecs, got {codec!r} as the {role} codec")
        if codec.takes is not takes or codec.gives is not Packed:
            raise UserError(
                f"paired(): the {role} codec must take {takes.__name__} and give Packed; {codec.name!r} takes "
                f"{codec.takes.__name__} and gives {codec.gives.__name__}"
            )
    return Paired(index, value)
