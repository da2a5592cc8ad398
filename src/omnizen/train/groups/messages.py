"""What ranks of different groups say to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

from omnizen.train.groups.layout import Shard
from omnizen.train.groups.server import Answer
from omnizen.train.groups.slices import pack_items, unpack_items
from omnizen.types import Parts


class Ask(IntEnum):
    """What is asked of a rank."""

    PUSH = 0
    PULL = 1
    VERSION = 2
    COPY = 3
    STATES = 4
    STALENESS = 5
    ARRIVE = 6
    DRAW = 7
    DRAWN = 8
    FREE = 9


class Said(IntEnum):
    """What kind of answer it is."""

    HERE = 0
    NOT_YET = 1
    EXPELLED = 2


@dataclass(frozen=True, slots=True)
class Message:
    """A question or an answer.

    Args:
        kind: an ``Ask`` or a ``Said``.
        numbers: whole numbers that belong to it.
        lost: flags of the ranks that the sender knows to be gone.
        parts: what else belongs to it.
    """

    kind: int
    numbers: tuple[int, ...]
    lost: Tensor
    parts: Parts = field(default_factory=list)

    def pack(self) -> Parts:
        """Return it as parts."""
        return [torch.tensor([self.kind, *self.numbers]), self.lost, *self.parts]

    @classmethod
    def unpack(cls, parts: Parts) -> Message:
        """Read what ``pack`` returned."""
        kind, *numbers = parts[0].tolist()
        return cls(kind, tuple(numbers), parts[1], list(parts[2:]))


def pack_answer(answer: Answer) -> Parts:
    """Return a server's answer as parts."""
    return [torch.tensor([answer.version, *answer.applied]), *pack_items(answer.items)]


def unpack_answer(parts: Parts, shard: Shard, dtypes: Sequence[torch.dtype]) -> Answer:
    """Read what ``pack_answer`` returned."""
    version, *applied = parts[0].tolist()
    return Answer(version, tuple(applied), unpack_items(parts[1:], shard, dtypes))


def pack_text(text: str) -> Tensor:
    """Return a text as uint8 ``[bytes]``."""
    raw = bytearray(text.encode())
    return torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)


def unpack_text(raw: Tensor) -> str:
    """Read what ``pack_text`` returned."""
    return raw.numpy().tobytes().decode()
