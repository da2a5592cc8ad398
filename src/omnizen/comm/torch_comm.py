"""The verbs over a torch process group that is passed in as an object, never the global default group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from omnizen.comm.base import CommBase, HasStep, check_parts
from omnizen.comm.meeting import Meeting, Meetings
from omnizen.comm.packing import Frame, pack, unpack
from omnizen.comm.schedule import around_a_ring, in_rounds
from omnizen.comm.torch_mailbox import TorchMailbox
from omnizen.comm.turns import Running, Turns
from omnizen.comm.wire import Group, Watch, Wire
from omnizen.errors import PeerLost, UserError
from omnizen.protocols import Later, Pending
from omnizen.spans import span
from omnizen.types import Parts

T = TypeVar("T")


def _numbered(device: torch.device) -> torch.device:
    """Name the device itself: "cuda" alone would mean another one to the comm's thread."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


class TorchComm(CommBase):
    """One rank's end of a process group. Ranks in errors are those of ``members``.

    Verbs return at once; a thread of the comm (or who waits) carries them out one after another, in the order
    called, so a link never carries data of two of them (all-reduces that follow one another overlap).
    ``all_to_all`` goes in scheduled rounds (round i: send to ``rank + i``, receive from ``rank - i``) and
    ``all_gather`` around a ring, so each link carries one flow each
    way; gloo's own all_to_all starts all flows at once and reaches about 60 % of a 100 Mbit/s link. Before each
    verb ranks exchange a small frame, as soon as it is called: a rank that is late, gone or in another call is
    named, and sizes that differ raise ``Disagreement`` on all ranks (gloo itself ends the process there). What
    fits into the frame travels in it. After one failure the group is unusable and each call raises the first
    cause.

    With gloo, tensors on an accelerator are packed there and travel through the CPU; with nccl they travel from
    where they are. Not measured on a GPU.

    Args:
        process_group: group of the ranks: a ``ProcessGroup`` or one backend of it.
        device: where results are put.
        timeout_s: limit of each wait: for peers to be ready, and for each message.
        name: what errors and threads call this group.
        members: the ranks of the world that this group consists of (all of ``range(size)`` if left out).
        make_group: makes the group of a ``sub`` from its world ranks and name; called on its members only.
        release: called once with the group by ``close``.
        parent: whose step this one follows.

    Example:
        >>> from omnizen.comm.torch_pg import thread_gloo_ranks
        >>> thread_gloo_ranks(2, lambda comm: int(comm.all_reduce(torch.tensor([comm.rank + 1])).wait()))
        [3, 3]
    """

    def __init__(
        self,
        process_group: Group,
        *,
        device: torch.device | str = "cpu",
        timeout_s: float = 60.0,
        name: str = "world",
        members: Sequence[int] | None = None,
        make_group: Callable[[list[int], str], Group] | None = None,
        release: Callable[[Group], None] | None = None,
        parent: HasStep | None = None,
    ) -> None:
        super().__init__(name, parent)
        self.rank, self.size = process_group.rank(), process_group.size()
        self.device, self.timeout_s = _numbered(torch.device(device)), timeout_s
        self._subs: list[TorchComm] = []
        self._boxes: list[TorchMailbox] = []
        self.members = list(range(self.size)) if members is None else list(members)
        self._group: Group | None = process_group
        self._make_group, self._release = make_group, release
        self._wire = Wire(process_group, self.device, timeout_s, self.members)
        self._meetings = Meetings(self._wire)
        self._sums: list[tuple[Any, Watch]] = []
        self._cause: BaseException | None = None
        self._turns = Turns(f"comm {name} rank {self.members[self.rank]}")

    def all_reduce(self, x: Tensor) -> Pending[Tensor]:
        """Sum over ranks by the backend's own all-reduce.

        Raises:
            Disagreement: on all ranks, when waited for, if shapes or dtypes differ.
        """
        check_parts([x], "all_reduce")
        shape = x.shape
        flat = x.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).to(self._wire.device, copy=True)
        self._wire.settle()
        meeting = self._meet_all(Frame.of("all_reduce", [x], self.step, whole=True))

        def begin() -> Callable[[], None]:
            watch = meeting.watch()
            meeting.answers(watch)
            if self.size == 1 or not flat.numel():
                return lambda: None
            work = self._wire.begin_sum(flat)
            self._sums.append((work, watch))
            return lambda: self._end_sum(work, watch)

        def finish() -> Tensor:
            begun.wait()()
            return flat.to(self.device).view(shape)

        begun = self._start(begin)
        if meeting.likely():
            self._turns.take_one(begun)  # the last rank to come need not wake a thread
        return Later(finish)

    def _end_sum(self, work: Any, watch: Watch) -> None:
        with span("wire", "all_reduce"), self._failing():
            self._wire.end_sum(work, watch)
        with contextlib.suppress(ValueError):  # the comm's thread has waited for it as well
            self._sums.remove((work, watch))

    def _end_sums(self) -> None:
        """Wait for the sums under way, so that no other data crosses the links at the same time."""
        for work, watch in list(self._sums):
            self._end_sum(work, watch)

    def all_gather(self, parts: Parts) -> Pending[list[Parts]]:
        """Give every rank's parts to every rank, in rank order."""
        check_parts(parts, "all_gather")
        swap = self._swap("all_gather", dict.fromkeys(range(self.size), parts), range(self.size), parts)
        return self._start(lambda: [got for _, got in sorted(swap().items())])

    def all_to_all(self, parts: Sequence[Parts]) -> Pending[list[Parts]]:
        """Send ``parts[j]`` to rank j."""
        self.check_each(parts)
        swap = self._swap("all_to_all", dict(enumerate(parts)), range(self.size), parts[self.rank])
        return self._start(lambda: [got for _, got in sorted(swap().items())])

    def exchange(self, out: Mapping[int, Parts], sources: Sequence[int], like: Parts) -> Pending[dict[int, Parts]]:
        """Send to and receive from the named ranks only."""
        self.check_exchange(out, sources, like)
        return self._start(self._swap("exchange", out, sources, like))

    def barrier(self) -> None:
        """Return when every rank has called it."""
        meeting = self._meet_all(Frame.of("barrier", [], self.step))
        self._start(lambda: meeting.answers(meeting.watch())).wait()

    def sub(self, ranks: Sequence[int], name: str) -> TorchComm | None:
        """Make a group of its own for some ranks; None on ranks outside it."""
        self.check_ranks(ranks, "sub")
        name = self.sub_name(name)
        if self.rank not in ranks:
            return None
        if self._make_group is None:
            raise UserError("this TorchComm was made without make_group, so it cannot make sub-groups; pass one")
        members = [self.members[r] for r in ranks]
        made = TorchComm(
            self._make_group(members, name),
            device=self.device,
            timeout_s=self.timeout_s,
            name=name,
            members=members,
            make_group=self._make_group,
            release=self._release,
            parent=self,
        )
        self._subs.append(made)
        return made

    def mailbox(self, name: str) -> TorchMailbox:
        """Make a mailbox, with a group for each pair of ranks; called by every rank."""
        self._check_open()
        name, make_group = self.sub_name(name), self._make_group
        if make_group is None or self._wire.device.type != "cpu":
            raise UserError(
                "a mailbox is made by a TorchComm over gloo that has make_group; use such a one beside this"
            )

        def connect(peer: int) -> Group:
            pair = sorted((self.members[self.rank], self.members[peer]))
            return make_group(pair, f"{name}/{pair[0]}-{pair[1]}")

        box = TorchMailbox(self.rank, self.members, name, self.timeout_s, self, connect)
        self._boxes.append(box)
        return box

    def close(self) -> None:
        """End the comm's thread and those of its sub-groups, and let go of the groups; twice is harmless."""
        for box in self._boxes:
            box.close()
        for sub in self._subs:
            sub.close()
        self._turns.close()
        group, self._group = self._group, None
        if group is not None:
            self._wire.close()
            if self._release is not None:
                self._release(group)

    def _start(self, work: Callable[[], T]) -> Running[T]:
        def guarded() -> T:
            if self._cause is not None:
                raise self._cause
            with self._failing():
                return work()

        return self._turns.submit(guarded)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Remember the first error of the group, and let the others know who was lost."""
        try:
            yield
        except BaseException as error:
            if self._cause is None:
                self._cause = error
                if isinstance(error, PeerLost):
                    others = [r for r in range(self.size) if r != self.rank and self.members[r] != error.peer]
                    self._meetings.tell_lost(others, error.peer)
            raise

    def _check_open(self) -> None:
        if self._cause is not None:
            raise self._cause
        if self._group is None:
            raise UserError(f"comm {self.name!r} is closed")

    def _meet_all(self, frame: Frame) -> Meeting:
        self._check_open()
        others = [r for r in range(self.size) if r != self.rank]
        return self._meetings.open(dict.fromkeys(others, frame), others, frame, self.step)

    def _swap(
        self, verb: str, out: Mapping[int, Parts], sources: Sequence[int], like: Parts
    ) -> Callable[[], dict[int, Parts]]:
        self._check_open()
        packed: dict[int, Tensor] = {}  # parts that go to several ranks are packed once
        described: dict[int, Frame] = {}
        mine = [p.detach().to(self.device, copy=True) for p in out[self.rank]] if self.rank in out else None
        others = {peer: parts for peer, parts in out.items() if peer != self.rank}
        for parts in others.values():
            if id(parts) not in packed:
                packed[id(parts)] = pack(parts, self._wire.device)
        self._wire.settle()
        for parts in others.values():
            if id(parts) not in described:
                described[id(parts)] = Frame.of(verb, parts, self.step, packed=packed[id(parts)])
        outbox = {peer: packed[id(parts)] for peer, parts in others.items()}
        frames = {peer: described[id(parts)] for peer, parts in others.items()}
        senders = [source for source in sources if source != self.rank]
        meeting = self._meetings.open(frames, senders, Frame.of(verb, like, self.step), self.step)
        templates = [torch.empty((0, *p.shape[1:]) if p.dim() else (), dtype=p.dtype) for p in like]

        def work() -> dict[int, Parts]:
            watch = meeting.watch()
            answers = meeting.answers(watch)
            self._end_sums()
            with span("wire", verb):
                move = around_a_ring if verb == "all_gather" else in_rounds
                inbox = move(meeting, outbox, answers, watch, self.size, self.rank)
            got = {
                peer: unpack(data.to(self.device), answers[peer].sizes, templates) for peer, data in inbox.items()
            }
            return got if mine is None else got | {self.rank: mine}

        return work
