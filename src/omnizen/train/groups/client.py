"""How a rank asks for shards, samples and meetings: whoever hosts them now, again if that one is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from omnizen.errors import PeerLost, TakenForLost
from omnizen.protocols import Mailbox, Pending
from omnizen.train.groups.layout import first_host
from omnizen.train.groups.members import Members
from omnizen.train.groups.messages import Ask, Message, Said, pack_text
from omnizen.types import Parts


class Client:
    """Asks on behalf of one rank.

    Args:
        box: the mailbox.
        members: who is there.
        shards: number of shards.
        lock: of the copies.
    """

    def __init__(self, box: Mailbox, members: Members, shards: int, lock: threading.RLock) -> None:
        self.box, self.members, self._shards, self.lock = box, members, shards, lock
        self._meetings = 0
        self.leaving = False
        """Whether this is the last meeting: who leaves it first is not lost."""

    def host(self, shard: int) -> int:
        """Return who serves a shard now."""
        return self.members.next_from(first_host(shard, self._shards, self.box.size))

    def ask(self, kind: Ask, numbers: Sequence[int], parts: Parts | None = None, first: int = 0) -> Asked:
        """Ask the rank ``first``, or the next one that is there; ``Asked.wait`` returns the answer."""
        return Asked(self, kind, tuple(numbers), parts or [], first)

    def ask_shard(self, kind: Ask, shard: int, numbers: Sequence[int] = (), parts: Parts | None = None) -> Asked:
        """Ask who serves a shard."""
        return self.ask(kind, (shard, *numbers), parts, first_host(shard, self._shards, self.box.size))

    def meet(self, label: str, brought: Tensor) -> Tensor:
        """Wait for all ranks that work; returns the sum of what they brought.

        Raises:
            Disagreement: others came for something else.
        """
        number, self._meetings = self._meetings, self._meetings + 1
        while True:
            asked = self.ask(Ask.ARRIVE, (number,), [pack_text(label), brought])
            answer = asked.wait()
            if answer.kind == Said.HERE:
                return answer.parts[0]

    @property
    def meetings(self) -> int:
        """Meetings that this rank was at."""
        return self._meetings

    def meeting_rank(self) -> int:
        """Return who hosts meetings and the order of samples."""
        return self.members.next_from(0)

    def lose(self, rank: int) -> None:
        """Take a rank for lost."""
        self.members.lose([rank])

    def check_own(self) -> None:
        """Stop where the others have gone on without this rank or its group.

        Raises:
            TakenForLost: this rank was too late.
            PeerLost: another member of its group was lost.
        """
        me = self.box.rank
        if self.leaving:
            return
        if me in self.members.lost:
            raise TakenForLost(
                f"rank {me} was silent for longer than {self.box.timeout_s:.0f} s, so the other ranks took it for "
                "lost and went on without it; its contributions are refused. Start it again from a checkpoint"
            )
        group = self.members.groups[self.members.group_of(me)]
        gone = [rank for rank in group if rank in self.members.lost]
        if gone:
            raise PeerLost(rank=me, peer=gone[0], step=self.box.step, elapsed_s=0.0, limit_s=self.box.timeout_s)


class Asked:
    """A question to whoever hosts something; asked again of the next host when one is lost."""

    def __init__(self, client: Client, kind: Ask, numbers: tuple[int, ...], parts: Parts, first: int) -> None:
        self._client, self._kind, self._numbers, self._parts, self._first = client, kind, numbers, parts, first
        self._host, self._pending = self._send()

    def _send(self) -> tuple[int, Pending[Parts]]:
        client = self._client
        while True:
            client.check_own()
            host = client.members.next_from(self._first)
            message = Message(self._kind, self._numbers, client.members.flags(), self._parts)
            try:
                return host, client.box.ask(host, message.pack())
            except PeerLost:
                client.lose(host)

    def wait(self, accept: Callable[[Message], object] = lambda _: None) -> Message:
        """Return the answer of a host that is not taken for lost.

        Args:
            accept: called with it under the lock of the copies: who takes a shard over, and asks how new they are,
                hears of it, or it is not believed.
        """
        client = self._client
        while True:
            try:
                answer = Message.unpack(self._pending.wait())
            except PeerLost:
                client.lose(self._host)
                self._host, self._pending = self._send()
                continue
            client.members.hear(answer.lost)
            client.check_own()
            if answer.kind == Said.EXPELLED:  # flags that come with it say so
                client.leaving = False
                client.check_own()
            with client.lock:
                if self._host not in client.members.lost:
                    accept(answer)
                    return answer
            self._host, self._pending = self._send()


NOTHING = torch.empty(0, dtype=torch.float64)
"""Brought to a meeting by those who bring nothing."""
