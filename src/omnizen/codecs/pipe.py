"""Codecs one after another: ``rows() | coo()`` packs the non-zero rows of a dense matrix."""

from __future__ import annotations

from dataclasses import dataclass

from omnizen.errors import UserError
from omnizen.protocols import Codec
from omnizen.types import Payload, Sparsity, Step


class Pipeable:
    """Gives a codec the ``|``."""

    __slots__ = ()

    def __or__(self: Codec, codec: Codec) -> Pipe:
        """Pack what this codec gives with the next."""
        return pipe(self, codec)


@dataclass(frozen=True, slots=True)
class Pipe(Pipeable):
    """The second codec packs what the first one gives; exact, unbiased or summable when both are."""

    first: Codec
    second: Codec

    @property
    def name(self) -> str:
        """Both names, in order."""
        return f"{self.first.name}|{self.second.name}"

    @property
    def takes(self) -> type[Payload]:
        """What the first takes."""
        return self.first.takes

    @property
    def gives(self) -> type[Payload]:
        """What the second gives."""
        return self.second.gives

    @property
    def summable(self) -> bool:
        """Whether both keep sums."""
        return self.first.summable and self.second.summable

    @property
    def unbiased(self) -> bool:
        """Whether both are."""
        return self.first.unbiased and self.second.unbiased

    @property
    def exact(self) -> bool:
        """Whether both are."""
        return self.first.exact and self.second.exact

    def encode(self, payload: Payload, step: Step) -> Payload:
        """Pack with the first, then with the second."""
        return self.second.encode(self.first.encode(payload, step), step)

    def decode(self, payload: Payload) -> Payload:
        """Unpack with the second, then with the first."""
        return self.first.decode(self.second.decode(payload))

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the bytes that the second gives."""
        return self.second.nbytes(pattern)


def pipe(first: Codec, second: Codec) -> Pipe:
    """Chain two codecs; ``first | second`` does the same.

    Raises:
        UserError: when one gives what the next does not take.

    Example:
        >>> from omnizen.codecs.coo import coo; from omnizen.codecs.rows import rows
        >>> (rows() | coo()).name
        'rows|coo'
    """
    for codec in (first, second):
        if not hasattr(codec, "gives"):
            raise UserError(f"a pipe is made of codecs, got {codec!r}")
    if first.gives is not second.takes:
        raise UserError(
            f"{first.name!r} gives {first.gives.__name__} and {second.name!r} takes {second.takes.__name__}; "
            f"put a codec from {first.gives.__name__} to {second.takes.__name__} between them"
        )
    return Pipe(first, second)
