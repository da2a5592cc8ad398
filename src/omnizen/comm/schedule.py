"""In which order the data of one verb crosses the links."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from omnizen.comm.meeting import Meeting
from omnizen.comm.packing import Frame
from omnizen.comm.wire import Watch

AT_ONCE_BYTES = 64 * 2**10
"""Verbs that move no more than this at a rank start all messages at once: waiting for turns would take longer."""


def _buffers(answers: Mapping[int, Frame], device: torch.device) -> dict[int, Tensor]:
    """Return room for each source's data, or the data where the frame brought it."""
    return {
        peer: torch.frombuffer(bytearray(frame.payload), dtype=torch.uint8).to(device)
        if frame.payload
        else torch.empty(frame.nbytes, dtype=torch.uint8, device=device)
        for peer, frame in answers.items()
    }


def in_rounds(
    meeting: Meeting, outbox: Mapping[int, Tensor], answers: Mapping[int, Frame], watch: Watch, size: int, rank: int
) -> dict[int, Tensor]:
    """Move one message for each pair, one flow each way on each link at a time.

    Args:
        outbox: bytes for each destination, uint8.

    Returns:
        The bytes from each source.
    """
    inbox = _buffers(answers, meeting.device)
    coming = {peer: buffer for peer, buffer in inbox.items() if not answers[peer].carries}
    going = {peer: data for peer, data in outbox.items() if not meeting.frames[peer].carries}
    few = len(coming) <= 1 and len(going) <= 1  # two partners would meet in different rounds, one way at a time
    if few or max(_total(coming), _total(going)) <= AT_ONCE_BYTES:
        meeting.move(coming, going, watch)
        return inbox
    for i in range(1, size):
        dest, source = (rank + i) % size, (rank - i) % size
        meeting.move(
            {source: coming[source]} if source in coming else {},
            {dest: going[dest]} if dest in going else {},
            watch,
        )
    return inbox


def around_a_ring(
    meeting: Meeting, outbox: Mapping[int, Tensor], answers: Mapping[int, Frame], watch: Watch, size: int, rank: int
) -> dict[int, Tensor]:
    """Pass every rank's block on to the next rank: as many bytes, but each link keeps one busy connection.

    All ranks know all sizes, so all of them see when the blocks are too small for that.
    """
    frames = [*answers.values(), *list(meeting.frames.values())[:1]]
    if sum(frame.nbytes for frame in frames if not frame.carries) <= AT_ONCE_BYTES:
        return in_rounds(meeting, outbox, answers, watch, size, rank)
    after, before = (rank + 1) % size, (rank - 1) % size
    inbox = _buffers(answers, meeting.device)
    own = next(iter(outbox.values()), torch.empty(0, dtype=torch.uint8))
    blocks = inbox | {rank: own}
    for i in range(1, size):
        coming, going = blocks[(rank - i) % size], blocks[(rank - i + 1) % size]
        meeting.move({before: coming}, {after: going}, watch)
    return inbox


def _total(messages: Mapping[int, Tensor]) -> int:
    return sum(data.numel() for data in messages.values())
