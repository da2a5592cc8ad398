"""Ranks as threads of one process: exact, deterministic, milliseconds. Most tests run on it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from omnizen.comm.base import CommBase, HasStep, check_parts
from omnizen.comm.thread_mailbox import Office, ThreadMailbox
from omnizen.errors import PeerLost, PeerTimeout, UserError
from omnizen.protocols import Later, Pending
from omnizen.spans import span
from omnizen.types import Parts

T = TypeVar("T")
Key = tuple[str, int, int, int]
"""Of a letter: group, source, destination, number of the letter between the two."""


class ThreadWorld:
    """The mailboxes that the thread ranks of one world share."""

    def __init__(self, size: int, timeout_s: float = 20.0) -> None:
        if size < 1:
            raise UserError(f"a world has at least one rank, got size={size}")
        if not timeout_s > 0:
            raise UserError(f"a time limit is a number of seconds above 0, got timeout_s={timeout_s}")
        self.size, self.timeout_s = size, timeout_s
        self._lock = threading.Lock()
        self._arrived = [threading.Condition(self._lock) for _ in range(size)]
        self._awaited: list[list[Key]] = [[] for _ in range(size)]
        self._mail: dict[Key, Parts] = {}
        self._lost: set[int] = set()
        self._offices: dict[str, Office] = {}

    def comm(self, rank: int) -> ThreadComm:
        """Return the comm of one rank of the whole world."""
        if rank not in range(self.size):
            raise UserError(f"the ranks of this world are 0..{self.size - 1}, got {rank}")
        return ThreadComm(self, list(range(self.size)), rank, "world")

    def post(self, letters: Mapping[Key, Parts]) -> None:
        """Leave parts for ranks; only those who wait for these very letters are woken."""
        with self._lock:
            self._mail.update(letters)
            for key in letters:
                if key in self._awaited[key[2]]:
                    self._arrived[key[2]].notify_all()

    def take(self, keys: Sequence[Key], step: int | None) -> list[Parts]:
        """Wait for letters to one rank; raises ``PeerLost`` when a sender ended or the time limit passed."""
        started = time.monotonic()
        with self._lock:
            for key in keys:
                while key not in self._mail:
                    self._wait_for(key, step, time.monotonic() - started)
            return [self._mail.pop(key) for key in keys]

    def _wait_for(self, key: Key, step: int | None, elapsed_s: float) -> None:
        _, source, me, _ = key
        if source in self._lost or elapsed_s >= self.timeout_s:
            made = PeerLost if source in self._lost else PeerTimeout
            raise made(rank=me, peer=source, step=step, elapsed_s=elapsed_s, limit_s=self.timeout_s)
        self._awaited[me].append(key)
        try:
            self._arrived[me].wait(self.timeout_s - elapsed_s)
        finally:
            self._awaited[me].remove(key)

    def lose(self, rank: int) -> None:
        """Mark a rank as ended, so that those who wait for it are told at once."""
        with self._lock:
            self._lost.add(rank)
            for arrived in self._arrived:
                arrived.notify_all()
            offices = [office for office in self._offices.values() if rank in office.members]
        for office in offices:
            office.lose(office.members.index(rank))

    def office(self, name: str, members: list[int]) -> Office:
        """Return the mailboxes of this name, the same for all ranks."""
        with self._lock:
            office = self._offices.setdefault(name, Office(members))
            lost = [rank for rank in members if rank in self._lost]
        for rank in lost:
            office.lose(members.index(rank))
        return office


class ThreadComm(CommBase):
    """One rank's end of a ThreadWorld. Ranks in errors are world ranks."""

    def __init__(
        self, world: ThreadWorld, members: Sequence[int], world_rank: int, name: str, parent: HasStep | None = None
    ) -> None:
        super().__init__(name, parent)
        self.world, self.members = world, list(members)
        self.rank, self.size = self.members.index(world_rank), len(self.members)
        self.device, self.timeout_s = torch.device("cpu"), world.timeout_s
        self._boxes: list[ThreadMailbox] = []
        self._sent: defaultdict[int, int] = defaultdict(int)
        self._received: defaultdict[int, int] = defaultdict(int)

    def _swap(self, out: Mapping[int, Parts], sources: Sequence[int]) -> Callable[[], dict[int, Parts]]:
        me = self.members[self.rank]
        letters = {}
        for dest, parts in out.items():
            peer = self.members[dest]
            letters[self.name, me, peer, self._sent[peer]] = [p.detach().clone() for p in parts]
            self._sent[peer] += 1
        self.world.post(letters)
        keys = {}
        for source in sources:
            peer = self.members[source]
            keys[source] = (self.name, peer, me, self._received[peer])
            self._received[peer] += 1
        step = self.step

        def finish() -> dict[int, Parts]:
            with span("wait", self.name):
                return dict(zip(keys, self.world.take(list(keys.values()), step), strict=True))

        return finish

    def all_reduce(self, x: Tensor) -> Pending[Tensor]:
        """Sum in rank order, so that every rank gets the same bits."""
        check_parts([x], "all_reduce")
        gathered = self.all_gather([x.reshape(-1)])

        def finish() -> Tensor:
            total: Tensor | None = None
            for (part,) in gathered.wait():
                total = part if total is None else total.add_(part)
            assert total is not None
            return total.view(x.shape)

        return Later(finish)

    def all_gather(self, parts: Parts) -> Pending[list[Parts]]:
        """Give every rank's parts to every rank, in rank order."""
        check_parts(parts, "all_gather")
        everyone = range(self.size)
        finish = self._swap(dict.fromkeys(everyone, parts), everyone)
        return Later(lambda: [parts for _, parts in sorted(finish().items())])

    def all_to_all(self, parts: Sequence[Parts]) -> Pending[list[Parts]]:
        """Send ``parts[j]`` to rank j."""
        self.check_each(parts)
        finish = self._swap(dict(enumerate(parts)), range(self.size))
        return Later(lambda: [parts for _, parts in sorted(finish().items())])

    def exchange(self, out: Mapping[int, Parts], sources: Sequence[int], like: Parts) -> Pending[dict[int, Parts]]:
        """Send to and receive from the named ranks only."""
        self.check_exchange(out, sources, like)  # beyond that, tensors arrive whole here
        return Later(self._swap(out, sources))

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.all_gather([]).wait()

    def sub(self, ranks: Sequence[int], name: str) -> ThreadComm | None:
        """Make a group; None on ranks outside it."""
        self.check_ranks(ranks, "sub")
        name = self.sub_name(name)
        me = self.members[self.rank]
        members = [self.members[r] for r in ranks]
        return ThreadComm(self.world, members, me, name, self) if me in members else None

    def mailbox(self, name: str) -> ThreadMailbox:
        """Make a mailbox; called by every rank."""
        name = self.sub_name(name)
        office = self.world.office(name, self.members)
        box = ThreadMailbox(office, self.rank, name, self.timeout_s, self)
        self._boxes.append(box)
        return box

    def close(self) -> None:
        """Close what mailboxes were made."""
        for box in self._boxes:
            box.close()


def launch(
    size: int, work: Callable[[int], T], *, timeout_s: float, ended: Callable[[int], None] | None = None
) -> list[T]:
    """Run ``work(rank)`` on ``size`` threads and return the results in rank order.

    The first error that is not a consequence of another rank's end is raised again; a thread that has not
    ended long after the time limit is an error.

    Args:
        size: number of threads.
        work: what each does.
        timeout_s: limit of one wait inside ``work``; threads get three times as long.
        ended: told of each rank that ends, however it ends.
    """
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def guarded(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors[rank] = error
        finally:
            if ended is not None:
                ended(rank)

    threads = [threading.Thread(target=guarded, args=(r,), name=f"rank{r}", daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + 3 * timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    stuck = [t.name for t in threads if t.is_alive()]
    causes = [e for e in errors.values() if not isinstance(e, PeerLost)] or list(errors.values())
    if causes:
        raise causes[0]
    if stuck:
        raise TimeoutError(f"{', '.join(stuck)} did not end within {3 * timeout_s:.0f} s")
    return [results[r] for r in range(size)]


def run_ranks(
    size: int, body: Callable[[Any], T], *, timeout_s: float = 20.0, wrap: Callable[[Any], Any] | None = None
) -> list[T]:
    """Run ``body(comm)`` on ``size`` thread ranks of one world; see ``launch`` for errors.

    Args:
        size: number of ranks.
        body: what each rank does.
        timeout_s: limit of each wait.
        wrap: put around each comm before the body sees it (a meter, faults).

    Example:
        >>> run_ranks(3, lambda comm: int(comm.all_reduce(torch.tensor([comm.rank])).wait()))
        [3, 3, 3]
    """
    world = ThreadWorld(size, timeout_s)

    def work(rank: int) -> T:
        comm = world.comm(rank)
        return body(wrap(comm) if wrap else comm)

    return launch(size, work, timeout_s=timeout_s, ended=world.lose)


__all__ = ["ThreadComm", "ThreadWorld", "launch", "run_ranks"]
