"""Before data moves, the two ranks of each pair tell each other in a frame what they are about to do."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from omnizen.comm.packing import FRAME_INTS, INLINE_SIZES, Frame
from omnizen.comm.wire import Watch, Wire
from omnizen.errors import Disagreement, PeerLost
from omnizen.spans import span

_TAGS = 1 << 29
_FRAME, _SIZES, _DATA = range(3)
_NOTHING = -1
"""In place of a verb: no frame has come."""


def _tag(number: int, phase: int) -> int:
    return (3 * number + phase) % _TAGS


class Meetings:
    """Numbers the messages of each pair, so only the two ranks of a pair need to agree on what comes next."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._sent: defaultdict[int, int] = defaultdict(int)
        self._received: defaultdict[int, int] = defaultdict(int)

    def open(
        self, frames: Mapping[int, Frame], sources: Sequence[int], expected: Frame, step: int | None
    ) -> Meeting:
        """Send frames to some ranks and begin to receive from others; waits for nobody.

        Frames of a call that is queued thus cross while data of the call before it is still on the links.
        """
        sends = {peer: self._sent[peer] for peer in frames}
        receives = {peer: self._received[peer] for peer in sources}
        for peer in sends:
            self._sent[peer] += 1
        for peer in receives:
            self._received[peer] += 1
        return Meeting(self.wire, frames, sends, receives, expected, step)

    def tell_lost(self, peers: Sequence[int], lost: int | None) -> None:
        """Let those who will wait for this rank know whom it lost, so that they name the right one."""
        frame = Frame("lost", -1 if lost is None else lost, -1, None, 0, ()).encode().to(self.wire.device)
        self.wire.tell({peer: (frame, _tag(self._sent[peer], _FRAME)) for peer in peers})


class Meeting:
    """One verb on its way: what goes to each destination, and from whom answers come."""

    def __init__(
        self,
        wire: Wire,
        frames: Mapping[int, Frame],
        sends: Mapping[int, int],
        receives: Mapping[int, int],
        expected: Frame,
        step: int | None,
    ) -> None:
        self.frames, self.expected, self.step = frames, expected, step
        self._wire, self._sends, self._receives = wire, sends, receives
        encoded: dict[int, Tensor] = {}  # a frame that goes to several ranks is encoded once
        for frame in frames.values():
            if id(frame) not in encoded:
                encoded[id(frame)] = frame.encode().to(wire.device)
        self._inbox = {p: torch.full((FRAME_INTS,), _NOTHING, device=wire.device) for p in receives}
        outbox = {p: encoded[id(frame)] for p, frame in frames.items()}
        self._posted = wire.post(self._incoming(self._inbox, _FRAME), self._outgoing(outbox, _FRAME))

    @property
    def device(self) -> torch.device:
        """Where data travels from."""
        return self._wire.device

    def likely(self) -> bool:
        """Return whether the answers seem to be there, so that ``answers`` will not have to wait."""
        on_cpu = self._wire.device.type == "cpu"  # looking on an accelerator would wait for it
        return on_cpu and all(int(frame[0]) != _NOTHING for frame in self._inbox.values())

    def watch(self) -> Watch:
        """Start the clock of what follows."""
        return Watch(self.step, time.monotonic())

    def answers(self, watch: Watch) -> dict[int, Frame]:
        """Return the frames of all sources once each is known to be in the same call.

        Raises:
            PeerLost: a source is gone, or says that another one is.
            Disagreement: a source is in another call.
        """
        with span("wait", self.expected.verb):
            self._wire.finish(self._posted, watch)
            frames = {peer: frame.tolist() for peer, frame in self._inbox.items()}
            rest_out = {
                peer: torch.tensor(frame.sizes[INLINE_SIZES:], dtype=torch.int64).to(self._wire.device)
                for peer, frame in self.frames.items()
                if len(frame.sizes) > INLINE_SIZES
            }
            rest_in = {
                peer: torch.empty(count - INLINE_SIZES, dtype=torch.int64, device=self._wire.device)
                for peer, numbers in frames.items()
                if (count := Frame.count(numbers)) > INLINE_SIZES
            }
            self._transfer(rest_in, rest_out, _SIZES, watch)
        rest = {peer: numbers.tolist() for peer, numbers in rest_in.items()}
        found = {peer: Frame.decode(numbers + rest.get(peer, [])) for peer, numbers in frames.items()}
        for peer, frame in found.items():
            self._compare(peer, frame, watch)
        return found

    def move(self, inbox: Mapping[int, Tensor], outbox: Mapping[int, Tensor], watch: Watch) -> None:
        """Move one tensor of data for each pair; both sides know that empty ones are left out."""
        self._transfer(inbox, outbox, _DATA, watch)

    def _transfer(
        self, inbox: Mapping[int, Tensor], outbox: Mapping[int, Tensor], phase: int, watch: Watch
    ) -> None:
        self._wire.transfer(self._incoming(inbox, phase), self._outgoing(outbox, phase), watch)

    def _incoming(self, inbox: Mapping[int, Tensor], phase: int) -> dict[int, tuple[Tensor, int]]:
        return {p: (data, _tag(self._receives[p], phase)) for p, data in inbox.items() if data.numel()}

    def _outgoing(self, outbox: Mapping[int, Tensor], phase: int) -> dict[int, tuple[Tensor, int]]:
        return {p: (data, _tag(self._sends[p], phase)) for p, data in outbox.items() if data.numel()}

    def _compare(self, peer: int, frame: Frame, watch: Watch) -> None:
        members, limit_s = self._wire.members, self._wire.timeout_s
        me, other = members[self._wire.rank], members[peer]
        if frame.verb == "lost":
            elapsed_s = time.monotonic() - watch.started_s
            lost = other if frame.kind < 0 else frame.kind
            raise PeerLost(rank=me, peer=lost, step=self.step, elapsed_s=elapsed_s, limit_s=limit_s)
        if not frame.agrees(self.expected):
            raise Disagreement(
                f"rank {me} called {self.expected}, rank {other} called {frame}: all ranks must make "
                "the same calls in the same order, with parts of the same number and kind"
            )
