"""The verbs over a torch process group that is passed in as an object, never the global default group."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from omnizen.comm.base import CommBase, HasStep, check_parts
from omnizen.comm.packing import FRAME_INTS, INLINE_SIZES, Frame, pack, unpack
from omnizen.comm.wire import Group, Watch, Wire
from omnizen.errors import Disagreement, PeerLost, UserError
from omnizen.protocols import Pending
from omnizen.spans import span
from omnizen.types import Parts

T = TypeVar("T")

_TAGS = 1 << 29
_FRAME, _SIZES, _DATA = range(3)


class Running(Generic[T]):
    """A result that the comm's own thread is working on."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def wait(self) -> T:
        """Return the result; it ends in time because each wait of the comm's thread has a limit."""
        return self._future.result()


@dataclass(frozen=True, slots=True)
class _Call:
    """One verb on its way: what goes to each destination, and from whom answers come.

    ``sends`` and ``receives`` number the messages of each pair, so only the two ranks of a pair need to agree.
    """

    frames: Mapping[int, Frame]
    sends: Mapping[int, int]
    receives: Mapping[int, int]
    expected: Frame
    step: int | None


def _numbered(device: torch.device) -> torch.device:
    """Name the device itself: "cuda" alone would mean another one to the comm's thread."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _tag(number: int, phase: int) -> int:
    return (3 * number + phase) % _TAGS


class TorchComm(CommBase):
    """One rank's end of a process group. Ranks in errors are those of ``members``.

    Verbs return at once; a thread of the comm carries them out one after another, in the order called, so a link
    never carries two of them. ``all_to_all`` goes in scheduled rounds (round i: send to ``rank + i``, receive from
    ``rank - i``) and ``all_gather`` around a ring, so each link carries one flow each way; gloo's own all_to_all
    starts all flows at once and reaches about 60 % of a 100 Mbit/s link. Before each verb ranks exchange a small
    frame: a rank that is late, gone or in another call is named, and sizes that differ raise ``Disagreement`` on
    all ranks (gloo itself ends the process there). After one failure the group is unusable and each call raises
    the first cause.

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
        self.members = list(range(self.size)) if members is None else list(members)
        self._group: Group | None = process_group
        self._make_group, self._release = make_group, release
        self._wire = Wire(process_group, self.device, timeout_s, self.members)
        self._sent: defaultdict[int, int] = defaultdict(int)
        self._received: defaultdict[int, int] = defaultdict(int)
        self._cause: BaseException | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"comm {name} rank {self.members[self.rank]}")

    def all_reduce(self, x: Tensor) -> Pending[Tensor]:
        """Sum over ranks by the backend's own all-reduce.

        Raises:
            Disagreement: on all ranks, when waited for, if shapes or dtypes differ.
        """
        check_parts([x], "all_reduce")
        shape = x.shape
        flat = x.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).to(self._wire.device, copy=True)
        self._wire.settle()
        call = self._call_all(Frame.of("all_reduce", [x], self.step, whole=True))

        def work() -> Tensor:
            watch = self._watch(call)
            self._meet(call, watch)
            if self.size > 1 and flat.numel():
                with span("wire", "all_reduce"):
                    self._wire.sum(flat, watch)
            return flat.to(self.device).view(shape)

        return self._start(work)

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
        call = self._call_all(Frame.of("barrier", [], self.step))
        self._start(lambda: self._meet(call, self._watch(call))).wait()

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

    def close(self) -> None:
        """End the comm's thread and those of its sub-groups, and let go of the groups; twice is harmless."""
        for sub in self._subs:
            sub.close()
        self._thread.shutdown(wait=True, cancel_futures=self._cause is not None)
        group, self._group = self._group, None
        if group is not None:
            self._wire.close()
            if self._release is not None:
                self._release(group)

    def _start(self, work: Callable[[], T]) -> Running[T]:
        def guarded() -> T:
            if self._cause is not None:
                raise self._cause
            try:
                return work()
            except BaseException as error:
                self._cause = error
                if isinstance(error, PeerLost):
                    self._tell_others(error)
                raise

        if self._cause is not None:
            raise self._cause
        if self._group is None:
            raise UserError(f"comm {self.name!r} is closed")
        return Running(self._thread.submit(guarded))

    def _tell_others(self, error: PeerLost) -> None:
        """Let those who will wait for this rank know whom it lost, so that they name the right one."""
        lost = Frame("lost", -1 if error.peer is None else error.peer, -1, None, 0, ())
        frame = lost.encode().to(self._wire.device)
        peers = [r for r in range(self.size) if r != self.rank and self.members[r] != error.peer]
        self._wire.tell({peer: (frame, _tag(self._sent[peer], _FRAME)) for peer in peers})

    def _call(self, frames: Mapping[int, Frame], sources: Sequence[int], expected: Frame) -> _Call:
        sends = {peer: self._sent[peer] for peer in frames}
        receives = {peer: self._received[peer] for peer in sources}
        for peer in sends:
            self._sent[peer] += 1
        for peer in receives:
            self._received[peer] += 1
        return _Call(frames, sends, receives, expected, self.step)

    def _call_all(self, frame: Frame) -> _Call:
        others = [r for r in range(self.size) if r != self.rank]
        return self._call(dict.fromkeys(others, frame), others, frame)

    @staticmethod
    def _watch(call: _Call) -> Watch:
        return Watch(call.step, time.monotonic())

    def _swap(
        self, verb: str, out: Mapping[int, Parts], sources: Sequence[int], like: Parts
    ) -> Callable[[], dict[int, Parts]]:
        packed: dict[int, Tensor] = {}  # parts that go to several ranks are packed once
        for parts in out.values():
            if id(parts) not in packed:
                packed[id(parts)] = pack(parts, self._wire.device)
        self._wire.settle()
        mine = [p.detach().to(self.device, copy=True) for p in out[self.rank]] if self.rank in out else None
        outbox = {peer: packed[id(parts)] for peer, parts in out.items() if peer != self.rank}
        frames = {peer: Frame.of(verb, out[peer], self.step) for peer in outbox}
        others = [source for source in sources if source != self.rank]
        call = self._call(frames, others, Frame.of(verb, like, self.step))
        templates = [torch.empty((0, *p.shape[1:]) if p.dim() else (), dtype=p.dtype) for p in like]

        def work() -> dict[int, Parts]:
            watch = self._watch(call)
            answers = self._meet(call, watch)
            with span("wire", verb):
                move = self._ring if verb == "all_gather" else self._rounds
                inbox = move(call, outbox, answers, watch)
            got = {
                peer: unpack(data.to(self.device), answers[peer].sizes, templates) for peer, data in inbox.items()
            }
            return got if mine is None else got | {self.rank: mine}

        return work

    def _meet(self, call: _Call, watch: Watch) -> dict[int, Frame]:
        """Exchange frames; returns those of all sources once each is known to be in the same call."""
        device = self._wire.device
        with span("wait", call.expected.verb):
            inbox = {p: torch.empty(FRAME_INTS, dtype=torch.int64, device=device) for p in call.receives}
            outbox = {p: frame.encode().to(device) for p, frame in call.frames.items()}
            self._transfer(call, inbox, outbox, _FRAME, watch)
            frames = {peer: frame.tolist() for peer, frame in inbox.items()}
            rest_out = {
                peer: torch.tensor(frame.sizes[INLINE_SIZES:], dtype=torch.int64).to(device)
                for peer, frame in call.frames.items()
                if len(frame.sizes) > INLINE_SIZES
            }
            rest_in = {
                peer: torch.empty(count - INLINE_SIZES, dtype=torch.int64, device=device)
                for peer, numbers in frames.items()
                if (count := Frame.count(numbers)) > INLINE_SIZES
            }
            self._transfer(call, rest_in, rest_out, _SIZES, watch)
        rest = {peer: numbers.tolist() for peer, numbers in rest_in.items()}
        answers = {peer: Frame.decode(numbers + rest.get(peer, [])) for peer, numbers in frames.items()}
        for peer, frame in answers.items():
            self._compare(call, peer, frame, watch)
        return answers

    def _compare(self, call: _Call, peer: int, frame: Frame, watch: Watch) -> None:
        me, other = self.members[self.rank], self.members[peer]
        if frame.verb == "lost":
            elapsed_s = time.monotonic() - watch.started_s
            lost = other if frame.kind < 0 else frame.kind
            raise PeerLost(rank=me, peer=lost, step=call.step, elapsed_s=elapsed_s, limit_s=self.timeout_s)
        if not frame.agrees(call.expected):
            raise Disagreement(
                f"rank {me} called {call.expected}, rank {other} called {frame}: all ranks must make "
                "the same calls in the same order, with parts of the same number and kind"
            )

    def _rounds(
        self, call: _Call, outbox: Mapping[int, Tensor], answers: Mapping[int, Frame], watch: Watch
    ) -> dict[int, Tensor]:
        """Move the data: one message for each pair, one flow each way on each link at a time."""
        device = self._wire.device
        inbox = {p: torch.empty(f.nbytes, dtype=torch.uint8, device=device) for p, f in answers.items()}
        if len(inbox) <= 1 and len(outbox) <= 1:  # two partners would meet in different rounds, one way at a time
            self._transfer(call, inbox, outbox, _DATA, watch)
            return inbox
        for i in range(1, self.size):
            dest, source = (self.rank + i) % self.size, (self.rank - i) % self.size
            coming = {source: inbox[source]} if source in inbox else {}
            going = {dest: outbox[dest]} if dest in outbox else {}
            self._transfer(call, coming, going, _DATA, watch)
        return inbox

    def _ring(
        self, call: _Call, outbox: Mapping[int, Tensor], answers: Mapping[int, Frame], watch: Watch
    ) -> dict[int, Tensor]:
        """Pass every rank's block on to the next rank: as many bytes, but each link keeps one busy connection."""
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        device = self._wire.device
        blocks = {p: torch.empty(f.nbytes, dtype=torch.uint8, device=device) for p, f in answers.items()}
        inbox = dict(blocks)
        blocks[self.rank] = next(iter(outbox.values()), torch.empty(0, dtype=torch.uint8))
        for i in range(1, self.size):
            coming, going = blocks[(self.rank - i) % self.size], blocks[(self.rank - i + 1) % self.size]
            self._transfer(call, {before: coming}, {after: going}, _DATA, watch)
        return inbox

    def _transfer(
        self, call: _Call, inbox: Mapping[int, Tensor], outbox: Mapping[int, Tensor], phase: int, watch: Watch
    ) -> None:
        """Move one tensor for each pair; both sides know that empty ones are left out."""
        self._wire.transfer(
            {p: (data, _tag(call.receives[p], phase)) for p, data in inbox.items() if data.numel()},
            {p: (data, _tag(call.sends[p], phase)) for p, data in outbox.items() if data.numel()},
            watch,
        )
