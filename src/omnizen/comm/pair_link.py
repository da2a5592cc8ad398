"""One rank's connection to another for questions and answers: a process group of the two alone.

gloo closes all connections of a group when one receive passes its time limit, so each pair has a group to itself:
what breaks ends that pair, nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from omnizen.comm.wire import Group

IDLE = timedelta(days=365)
"""Limit of a wait for a question: only a message, or the end of the connection, ends it."""
PIECE_BYTES = 4 * 2**20
"""Letters travel in pieces, each with the time limit of a wait: what moves is not late."""
_NEVER = 1 << 20
"""Tag of a message that nobody sends."""
_HEAD_BYTES = 16
_INLINE_BYTES = 496
"""Letters up to this size travel with their head, in one message."""


class Kind(IntEnum):
    """What a message is."""

    QUESTION = 0
    ANSWER = 1
    NO_ANSWER = 2
    BYE = 3


class PairLink:
    """Two one-way streams of letters in each direction: questions and answers to them.

    Every method raises ``RuntimeError`` when the connection is broken or a limit passed; it is of no use after.

    Args:
        group: of two ranks.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._peer = 1 - group.rank()

    def post(self, stream: Kind) -> tuple[Tensor, Any]:
        """Make room for the next head of a stream; early room saves its sender a round trip."""
        room = torch.empty(_HEAD_BYTES + _INLINE_BYTES, dtype=torch.uint8)
        return room, self._group.recv([room], self._peer, 2 * stream)

    def send(self, stream: Kind, kind: Kind, letter: Tensor) -> Callable[[timedelta], None]:
        """Send a letter; waits for nobody.

        Returns:
            What waits, with a limit for each piece, until it has left; it must be kept, or gloo loses the message.
        """
        head = torch.zeros(_HEAD_BYTES + _INLINE_BYTES, dtype=torch.uint8)
        head[:_HEAD_BYTES] = torch.tensor([kind, len(letter)]).view(torch.uint8)
        inline = len(letter) <= _INLINE_BYTES
        if inline:
            head[_HEAD_BYTES : _HEAD_BYTES + len(letter)] = letter
        works = [(head, self._group.send([head], self._peer, 2 * stream))]
        for piece in () if inline else letter.split(PIECE_BYTES):
            works.append((piece, self._group.send([piece], self._peer, 2 * stream + 1)))

        def wait(limit: timedelta) -> None:
            for _, work in works:
                work.wait(limit)

        return wait

    def receive(
        self, posted: tuple[Tensor, Any], stream: Kind, first: timedelta, then: timedelta
    ) -> tuple[Kind, Tensor]:
        """Wait for a letter whose head was made room for.

        Args:
            first: limit of the wait for the head.
            then: limit of the wait for each piece.
        """
        room, work = posted
        work.wait(first)
        kind, nbytes = room[:_HEAD_BYTES].view(torch.int64).tolist()
        if nbytes <= _INLINE_BYTES:
            return Kind(kind), room[_HEAD_BYTES : _HEAD_BYTES + nbytes]
        letter = torch.empty(nbytes, dtype=torch.uint8)
        pieces = [
            (piece, self._group.recv([piece], self._peer, 2 * stream + 1)) for piece in letter.split(PIECE_BYTES)
        ]
        for _, work in pieces:
            work.wait(then)
        return Kind(kind), letter

    def cut(self) -> None:
        """End the connection, and with it whatever waits on it: what a receive does whose limit passes."""
        with contextlib.suppress(RuntimeError):
            self._group.recv([torch.empty(1, dtype=torch.uint8)], self._peer, _NEVER).wait(
                timedelta(milliseconds=1)
            )
