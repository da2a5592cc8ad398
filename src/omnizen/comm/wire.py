"""Messages between the two ranks of a pair, over a process group; each wait has a limit and names the peer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from omnizen.errors import PeerLost, PeerTimeout

Group = Any
"""A ``ProcessGroup`` or one of its backends (``ProcessGroupGloo``): both offer send, recv and allreduce."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What an error must say about the call that failed: its step and when it started (``time.monotonic``)."""

    step: int | None
    started_s: float


@dataclass(slots=True)
class Posted:
    """A transfer under way: its buffers and works live as long as this does."""

    works: list[tuple[int, Any]] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)
    broken: tuple[int, RuntimeError] | None = None


class Wire:
    """Point-to-point messages and the native all-reduce of one group.

    Args:
        group: the process group.
        device: device of the group's results; picks the backend of a group that has several.
        timeout_s: limit of each wait.
        members: world rank of each rank, for errors.
    """

    def __init__(self, group: Group, device: torch.device, timeout_s: float, members: Sequence[int]) -> None:
        self._links: Group = group._get_backend(device) if isinstance(group, dist.ProcessGroup) else group
        self.rank, self.timeout_s, self.members = group.rank(), timeout_s, members
        self._nccl = self._links.name() == "nccl"
        self.device = device if self._nccl else torch.device("cpu")
        self._keep: dict[int, Any] = {}  # gloo loses a message whose work object is dropped

    def settle(self) -> None:
        """Wait until what was packed on an accelerator is there: the comm's thread uses a stream of its own."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def transfer(
        self, receive: Mapping[int, tuple[Tensor, int]], send: Mapping[int, tuple[Tensor, int]], watch: Watch
    ) -> None:
        """Receive into and send from the given (tensor, tag) of each peer; return when all of it is done.

        Receives of data are not posted earlier than their round: with gloo a message begins when its receive is
        posted, which keeps a sender that is ahead from crowding the link of a receiver that is not.
        """
        self.finish(self.post(receive, send), watch)

    def post(self, receive: Mapping[int, tuple[Tensor, int]], send: Mapping[int, tuple[Tensor, int]]) -> Posted:
        """Begin a transfer; ``finish`` must be called on what is returned, also when a later one failed."""
        posted = Posted()
        if not receive and not send:
            return posted
        self._keep[id(posted)] = posted
        if self._nccl:  # one launch, or two ranks that send first would wait for each other; not measured
            self._links._start_coalescing()
        for verb, messages in ((self._links.recv, receive), (self._links.send, send)):
            for peer, (buffer, tag) in messages.items():
                posted.buffers.append(buffer)
                try:
                    posted.works.append((peer, verb([buffer], peer, tag)))
                except RuntimeError as error:  # go on: the other peers must not miss their messages
                    posted.broken = posted.broken or (peer, error)
        if self._nccl:
            posted.works = [(posted.works[0][0], self._links._end_coalescing())] if posted.works else []
        return posted

    def finish(self, posted: Posted, watch: Watch) -> None:
        """Wait until a transfer is done."""
        if posted.broken is not None:
            peer, error = posted.broken
            raise self.failure(error, peer, watch)
        deadline_s = time.monotonic() + self.timeout_s
        for peer, work in posted.works:
            left_s = max(0.001, deadline_s - time.monotonic())
            try:
                work.wait(timedelta(seconds=left_s))
            except RuntimeError as error:
                raise self.failure(error, peer, watch) from error
        self._keep.pop(id(posted), None)

    def begin_sum(self, flat: Tensor) -> Any:
        """Begin to add up ``flat`` over all ranks, in place, by the backend's own all-reduce."""
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=self.timeout_s)
        return self._links.allreduce([flat], options)

    def end_sum(self, work: Any, watch: Watch) -> None:
        """Wait until a sum is there; the backend ends it at the time limit."""
        try:
            work.wait()
        except RuntimeError as error:
            broken = self.broken_links()
            raise self.failure(error, broken[0] if len(broken) == 1 else None, watch) from error

    def broken_links(self) -> list[int]:
        """Return the ranks to which nothing can be sent any more (only asked once the group is of no more use)."""
        broken = []
        for peer in range(len(self.members)):
            if peer != self.rank:
                try:
                    probe = torch.zeros(1, dtype=torch.uint8, device=self.device)
                    self._hold(probe, self._links.send([probe], peer, (1 << 31) - 1))
                except RuntimeError:
                    broken.append(peer)
        return broken

    def tell(self, frames: Mapping[int, tuple[Tensor, int]]) -> None:
        """Leave a last message for each peer that can still be reached; nobody waits for it to arrive."""
        for peer, (frame, tag) in frames.items():
            with contextlib.suppress(RuntimeError):  # that link is broken as well: nothing to tell it
                self._hold(frame, self._links.send([frame], peer, tag))

    def _hold(self, *what: Any) -> None:
        self._keep[id(what)] = what

    def failure(self, error: RuntimeError, peer: int | None, watch: Watch) -> PeerLost:
        """Turn the backend's error into one that names rank, peer, step and time."""
        elapsed_s = time.monotonic() - watch.started_s
        late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
        made = PeerTimeout if late else PeerLost
        return made(
            rank=self.members[self.rank],
            peer=None if peer is None else self.members[peer],
            step=watch.step,
            elapsed_s=elapsed_s,
            limit_s=self.timeout_s,
        )

    def close(self) -> None:
        """Let go of the group; its connections end with the last reference."""
        self._keep.clear()
        self._links = None
