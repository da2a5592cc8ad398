"""What a rank answers to the others: as a server of shards, as host of meetings and of the samples' order."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from omnizen.errors import PeerLost
from omnizen.protocols import Mailbox
from omnizen.train.groups.assembly import Assembly
from omnizen.train.groups.copies import Copies, Copy
from omnizen.train.groups.layout import Shard, first_host
from omnizen.train.groups.members import Members
from omnizen.train.groups.messages import Ask, Message, Said, pack_answer, pack_text, unpack_text
from omnizen.train.groups.server import Owner, ShardServer
from omnizen.train.groups.slices import unpack_items
from omnizen.train.groups.tickets import TicketBook, merged
from omnizen.types import Parts


@dataclass(frozen=True, slots=True)
class Layout:
    """How parameters are cut, and whose they are; the same on all ranks.

    Args:
        shards: slices of each shard.
        dtypes: of each slice of each shard.
        owners: of each slice of each shard.
        optimizers: the user's.
    """

    shards: Sequence[Shard]
    dtypes: Sequence[Sequence[torch.dtype]]
    owners: Sequence[Sequence[Owner]]
    optimizers: Sequence[Optimizer]

    def server(self, shard: int, copy: Copy, states: Sequence[dict[str, object]] | None = None) -> ShardServer:
        """Return a server that begins from a copy."""
        return ShardServer(
            self.shards[shard],
            copy.values,
            self.owners[shard],
            self.optimizers,
            applied=copy.applied,
            version=copy.version,
            states=states,
        )


class Service:
    """Answers for one rank. A shard whose host was lost is taken over by the next rank that is asked for it.

    Before it takes over, it hears from every rank that is there how new its copy is, and all of them learn of the
    loss: from then on none of them believes what the old host answers, should it come back.

    Args:
        box: where questions come in.
        aside: another one, for questions that are asked in order to answer one: those are answered at once, so two
            ranks that take something over at the same time do not wait for each other.
        note: told in a sentence of each take-over.
    """

    def __init__(
        self,
        box: Mailbox,
        aside: Mailbox,
        members: Members,
        layout: Layout,
        copies: Copies,
        note: Callable[[str], None],
    ) -> None:
        self._box, self._aside, self.members = box, aside, members
        self._layout, self._copies, self._note = layout, copies, note
        self.assembly = Assembly(members, box.timeout_s)
        self.book: TicketBook | None = None
        self.drawn: Callable[[], list[tuple[int, int, int]]] = list
        self._book_ready = False
        self.servers: dict[int, ShardServer] = {}
        self._adopting = threading.Lock()

    def open(self, copies: Copies, states: Callable[[int], list[dict[str, object]] | None]) -> None:
        """Begin, or begin anew, the servers of this rank from copies.

        Args:
            states: optimizer state of each slice of a shard, where training goes on.
        """
        self._copies, count = copies, len(self._layout.shards)
        mine = [s for s in range(count) if first_host(s, count, self._box.size) == self._box.rank]
        self.servers = {s: self._layout.server(s, self._copies.give(s), states(s)) for s in mine}

    def regroup(self, groups: int) -> None:
        """Go on for so many other groups; contributions and their staleness are counted anew."""
        self._copies.regroup(groups)
        for server in self.servers.values():
            server.regroup(groups)
        self.assembly.regrouped()

    def staleness(self) -> Counter[int]:
        """Return how stale contributions to this rank's shards were."""
        return sum((server.histogram for server in self.servers.values()), Counter())

    def answer(self, source: int, parts: Parts) -> Parts:
        """Answer one question."""
        message = Message.unpack(parts)
        if source in self.members.lost:
            return self._said(Said.EXPELLED).pack()
        if self.members.lose(message.lost.nonzero().view(-1).tolist()):
            self.assembly.changed()
        if self._box.rank in self.members.lost:
            return self._said(Said.EXPELLED).pack()
        self.assembly.heard(source)
        return self._answers[message.kind](self, source, message).pack()

    def _said(self, said: Said, numbers: Sequence[int] = (), parts: Parts | None = None) -> Message:
        return Message(said, tuple(numbers), self.members.flags(), parts or [])

    def _push(self, source: int, message: Message) -> Message:
        shard, sequence, read = message.numbers
        server = self._server(shard)
        items = unpack_items(message.parts[1:], server.shard, server.dtypes)
        settings = unpack_text(message.parts[0])
        group = self.members.group_of(source)
        return self._said(Said.HERE, parts=pack_answer(server.push(group, sequence, read, settings, items)))

    def _pull(self, _: int, message: Message) -> Message:
        shard, read = message.numbers
        return self._said(Said.HERE, parts=pack_answer(self._server(shard).pull(read)))

    def _version(self, _: int, message: Message) -> Message:
        with self._copies.lock:  # what was believed until now is in this version, and nothing that comes later
            return self._said(Said.HERE, [self._copies.version(message.numbers[0])])

    def _copy(self, _: int, message: Message) -> Message:
        copy = self._copies.give(message.numbers[0])
        return self._said(Said.HERE, [copy.version, *copy.applied], list(copy.values))

    def _states(self, _: int, message: Message) -> Message:
        names, parts = [], []
        for number, state in enumerate(self._server(message.numbers[0]).states()):
            for name, value in state.items():
                if value is not None:
                    names.append([number, name, isinstance(value, Tensor)])
                    parts.append(value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64))
        return self._said(Said.HERE, parts=[pack_text(json.dumps(names)), *parts])

    def _staleness(self, _: int, __: Message) -> Message:
        found = sorted(self.staleness().items())
        return self._said(Said.HERE, parts=[torch.tensor(found, dtype=torch.int64).view(-1, 2)])

    def _arrive(self, source: int, message: Message) -> Message:
        (number,) = message.numbers
        label, brought = unpack_text(message.parts[0]), message.parts[1]
        total = self.assembly.arrive(source, number, label, brought)
        return self._said(Said.NOT_YET) if total is None else self._said(Said.HERE, parts=[total])

    def _draw(self, source: int, message: Message) -> Message:
        epoch, sequence, wanted, confirmed = message.numbers
        book = self._tickets()
        ranges = book.draw(epoch, sequence, group=self.members.group_of(source), wanted=wanted, confirmed=confirmed)
        return self._said(Said.HERE, parts=[_rows(ranges), _rows(book.read())])

    def _drawn(self, _: int, __: Message) -> Message:
        return self._said(Said.HERE, parts=[_rows(merged(self.drawn()))])

    def _free(self, _: int, __: Message) -> Message:
        return self._said(Said.HERE, parts=[_rows(self._tickets().free(), width=4)])

    def _tickets(self) -> TicketBook:
        with self._adopting:
            assert self.book is not None, "who draws has a loader, and so have all"
            if not self._book_ready:
                if self.members.next_from(0) != 0:
                    self._take_over_book(self.book)
                self._book_ready = True
        for group in range(len(self.members.groups)):
            if not self.members.is_whole(group):
                self.book.lose(group)
        return self.book

    def _take_over_book(self, book: TicketBook) -> None:
        drawn = [self.drawn()]
        for _, answer in self._everyone(Ask.DRAWN, ()):
            drawn.append([(epoch, begin, end) for epoch, begin, end in answer.parts[0].tolist()])
        book.leave_out([each for found in drawn for each in found])
        self._note("rank 0 is lost: the order of samples goes on from what the other ranks have drawn")

    def _server(self, shard: int) -> ShardServer:
        with self._adopting:
            if shard not in self.servers:
                self.servers[shard] = self._adopt(shard)
            return self.servers[shard]

    def _adopt(self, shard: int) -> ShardServer:
        """Take a shard over, from the newest copy that any rank has."""
        best, newest = self._box.rank, self._copies.version(shard)
        for rank, answer in self._everyone(Ask.VERSION, (shard,)):
            if answer.numbers[0] > newest:
                best, newest = rank, answer.numbers[0]
        copy = self._copies.give(shard)
        if best != self._box.rank:
            found = self._ask(best, Ask.COPY, (shard,))
            copy = Copy(found.parts, found.numbers[0], found.numbers[1:])
        old = first_host(shard, len(self._layout.shards), self._box.size)
        self._note(
            f"rank {old} is lost: rank {self._box.rank} serves shard {shard} from now on, from version "
            f"{copy.version}; its optimizer state (momentum) begins anew"
        )
        return self._layout.server(shard, copy)

    def _everyone(self, kind: Ask, numbers: tuple[int, ...]) -> list[tuple[int, Message]]:
        """Ask all others that are there; whoever turns out to be gone is lost."""
        found = []
        for rank in range(self._box.size):
            if rank != self._box.rank and rank not in self.members.lost:
                try:
                    found.append((rank, self._ask(rank, kind, numbers)))
                except PeerLost:
                    self.members.lose([rank])
        return found

    def _ask(self, rank: int, kind: Ask, numbers: tuple[int, ...]) -> Message:
        answer = Message.unpack(self._aside.ask(rank, Message(kind, numbers, self.members.flags()).pack()).wait())
        self.members.hear(answer.lost)
        return answer

    _answers: ClassVar[dict[int, Callable[[Service, int, Message], Message]]] = {
        Ask.PUSH: _push,
        Ask.PULL: _pull,
        Ask.VERSION: _version,
        Ask.COPY: _copy,
        Ask.STATES: _states,
        Ask.STALENESS: _staleness,
        Ask.ARRIVE: _arrive,
        Ask.DRAW: _draw,
        Ask.DRAWN: _drawn,
        Ask.FREE: _free,
    }


def _rows(ranges: Sequence[tuple[int, ...]], width: int = 3) -> torch.Tensor:
    return torch.tensor(ranges, dtype=torch.int64).view(-1, width)
