"""Simulated links: real data between threads, time on virtual clocks; for networks larger than the machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from omnizen.comm import links as cost
from omnizen.comm.base import check_parts
from omnizen.comm.links import Links
from omnizen.comm.packing import nbytes
from omnizen.comm.threads import ThreadComm, ThreadWorld, launch
from omnizen.comm.wrapper import SIZE_BYTES
from omnizen.errors import UserError
from omnizen.protocols import Later, Pending
from omnizen.types import Parts

T = TypeVar("T")


@dataclass(slots=True)
class _Collective:
    """One call of a whole group: what each rank brings, and when each is through."""

    verb: str
    start_s: dict[int, float] = field(default_factory=dict)
    num_parts: int = 0
    out_bytes: dict[int, list[int]] = field(default_factory=dict)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    total: Tensor | None = None
    finish_s: cost.Floats | None = None
    left: int = 0


class SimulatedWorld:
    """Virtual clocks and links of all ranks, beside the mailboxes that carry the data.

    Args:
        links: one for each rank.
        timeout_s: limit of each wait, in real seconds.
    """

    def __init__(self, links: Links, timeout_s: float = 60.0) -> None:
        self.mail = ThreadWorld(len(links.ranks), timeout_s)
        self.bandwidth, self.latency = links.matrices()
        self.now_s = [0.0] * self.mail.size
        self._calls: dict[tuple[str, int], _Collective] = {}
        self._free_s: dict[tuple[str, int], float] = {}
        self._finished: dict[str, int] = {}
        self._lock = threading.Lock()

    def comm(self, rank: int) -> SimulatedComm:
        """Return the comm of one rank of the whole world."""
        return SimulatedComm(self, self.mail.comm(rank))

    def bring(self, key: tuple[str, int], rank: int, verb: str, out: Sequence[Parts], x: Tensor | None) -> None:
        """Note what a rank brings to a call (group, number), before it posts its data."""
        with self._lock:
            call = self._calls.setdefault(key, _Collective(verb))
            call.start_s[rank] = self.now_s[rank]
            call.num_parts = len(out[0]) if out else 0
            call.out_bytes[rank] = [nbytes(parts) for parts in out]
            if x is not None:
                call.tensors[rank] = x

    def finish(self, key: tuple[str, int], members: Sequence[int], rank: int) -> tuple[float, Tensor | None]:
        """Return when a rank is through a call that all members have brought to, and the sum of its tensors."""
        group, number = key
        with self._lock:
            for at in range(self._finished.get(group, 0), number + 1):  # in the order called, whoever waits first
                self._run(self._calls[group, at], group, members)
                self._finished[group] = at + 1
            call = self._calls[key]
            assert call.finish_s is not None
            finish_s, total = float(call.finish_s[members.index(rank)]), call.total
            call.left -= 1
            if call.left == 0:
                del self._calls[key]
        return finish_s, total

    def _run(self, call: _Collective, group: str, members: Sequence[int]) -> None:
        """Compute the clocks of one call; calls of a group follow one another on its links."""
        start = np.array([max(call.start_s[m], self._free_s.get((group, m), 0.0)) for m in members])
        of_group = np.ix_(members, members)
        bandwidth, latency = self.bandwidth[of_group], self.latency[of_group]
        if call.verb == "all_reduce":
            ordered = [call.tensors[m] for m in members]
            call.total = ordered[0].clone()
            for x in ordered[1:]:
                call.total.add_(x)  # in rank order: every rank gets the same bits
            call.tensors.clear()
            call.finish_s = cost.ring(start, nbytes([call.total]), bandwidth, latency)
        else:
            call.finish_s = cost.meet(start, SIZE_BYTES * call.num_parts, bandwidth, latency)
            if call.verb != "barrier":
                num_bytes = np.array([call.out_bytes[m] for m in members], dtype=np.float64)
                call.finish_s = cost.swap(call.finish_s, num_bytes, bandwidth, latency)
        self._free_s.update({(group, m): float(t) for m, t in zip(members, call.finish_s, strict=True)})
        call.left = len(members)


class SimulatedComm:
    """One rank of a simulated world: verbs carry real data and move the rank's clock when waited for.

    Data moves in the scheduled rounds of the torch comm, an all-reduce in a ring; calls of one group follow one
    another on its links, and computation between a call and its wait overlaps with it. Different groups do not
    slow each other down.
    """

    def __init__(self, world: SimulatedWorld, mail: ThreadComm) -> None:
        self.world, self._mail = world, mail
        self.rank, self.size, self.name, self.members = mail.rank, mail.size, mail.name, mail.members
        self.device, self.timeout_s = mail.device, mail.timeout_s
        self._me = mail.members[mail.rank]
        self._calls = 0

    @property
    def step(self) -> int | None:
        """Step to name in errors."""
        return self._mail.step

    @step.setter
    def step(self, step: int | None) -> None:
        self._mail.step = step

    @property
    def now_s(self) -> float:
        """Time on this rank's clock, in seconds since the start."""
        return self.world.now_s[self._me]

    def compute(self, seconds: float) -> None:
        """Let this rank be busy for so long."""
        if seconds < 0:
            raise UserError(f"computation takes at least 0 seconds, got {seconds}")
        self.world.now_s[self._me] += seconds

    def slow(self, source: int, dest: int, factor: float) -> None:
        """From now on, let the way between two world ranks take ``factor`` times as long."""
        self.world.bandwidth[source, dest] /= factor
        self.world.latency[source, dest] *= factor

    def all_reduce(self, x: Tensor) -> Pending[Tensor]:
        """Sum in rank order, so that every rank gets the same bits."""
        check_parts([x], "all_reduce")
        return self._together("all_reduce", [], lambda: self._mail.all_gather([]), x.detach().clone())

    def all_gather(self, parts: Parts) -> Pending[list[Parts]]:
        """Give every rank's parts to every rank."""
        check_parts(parts, "all_gather")
        return self._together("all_gather", [parts] * self.size, lambda: self._mail.all_gather(parts))

    def all_to_all(self, parts: Sequence[Parts]) -> Pending[list[Parts]]:
        """Send ``parts[j]`` to rank j."""
        self._mail.check_each(parts)
        return self._together("all_to_all", parts, lambda: self._mail.all_to_all(parts))

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._together("barrier", [], lambda: self._mail.all_gather([])).wait()

    def exchange(self, out: Mapping[int, Parts], sources: Sequence[int], like: Parts) -> Pending[dict[int, Parts]]:
        """Send to and receive from the named ranks only; each link carries its messages one after another."""
        self._mail.check_exchange(out, sources, like)
        bandwidth, latency = self.world.bandwidth, self.world.latency
        at_s, stamped = self.now_s, {}
        for dest in sorted(out, key=lambda dest: (dest - self.rank) % self.size):
            stamped[dest] = [torch.tensor([at_s], dtype=torch.float64), *out[dest]]
            if dest != self.rank:
                at_s += _pair_bytes(out[dest]) / bandwidth[self._me, self.members[dest]]
        sent_s = at_s
        pending = self._mail.exchange(stamped, sources, like)

        def finish() -> dict[int, Parts]:
            got = pending.wait()
            through_s = sent_s
            down_free_s = 0.0
            for source, (begun, *parts) in sorted(got.items(), key=lambda item: (float(item[1][0]), item[0])):
                if source != self.rank:
                    peer = self.members[source]
                    down_free_s = max(down_free_s, float(begun)) + _pair_bytes(parts) / bandwidth[peer, self._me]
                    through_s = max(through_s, down_free_s + 2 * latency[peer, self._me])  # sizes, then data
            self._advance(through_s)
            return {source: parts[1:] for source, parts in got.items()}

        return Later(finish)

    def sub(self, ranks: Sequence[int], name: str) -> SimulatedComm | None:
        """Make a group; None on ranks outside it."""
        mail = self._mail.sub(ranks, name)
        return None if mail is None else SimulatedComm(self.world, mail)

    def close(self) -> None:
        """Nothing is held."""

    def _advance(self, to_s: float) -> None:
        self.world.now_s[self._me] = max(self.now_s, to_s)

    def _together(
        self, verb: str, out: Sequence[Parts], start: Callable[[], Pending[Any]], x: Tensor | None = None
    ) -> Pending[Any]:
        key = (self.name, self._calls)
        self._calls += 1
        self.world.bring(key, self._me, verb, out, x)
        pending = start()

        def finish() -> Any:
            got = pending.wait()  # from all ranks: so all of them have brought their part
            finish_s, total = self.world.finish(key, self.members, self._me)
            self._advance(finish_s)
            return got if total is None else total.clone()

        return Later(finish)


def _pair_bytes(parts: Parts) -> int:
    return nbytes(parts) + SIZE_BYTES * len(parts)


@dataclass(frozen=True, slots=True)
class Simulated(Generic[T]):
    """What a simulation gave.

    Args:
        results: what each rank's body returned.
        clocks_s: each rank's time at its end.
    """

    results: list[T]
    clocks_s: list[float]


def simulate_ranks(
    size: int,
    body: Callable[[Any], T],
    *,
    links: Links,
    timeout_s: float = 60.0,
    wrap: Callable[[Any], Any] | None = None,
) -> Simulated[T]:
    """Run ``body(comm)`` on ``size`` simulated ranks; deterministic, up to several hundred ranks.

    Args:
        size: number of ranks.
        body: what each rank does; ``comm.compute(seconds)`` moves its clock, ``comm.now_s`` reads it.
        links: one for each rank.
        timeout_s: limit of each wait, in real seconds.
        wrap: put around each comm before the body sees it.

    Example:
        >>> links = Links.uniform(4, bandwidth_bytes_per_s=1e6, latency_s=0.001)
        >>> done = simulate_ranks(4, lambda comm: comm.all_reduce(torch.zeros(1000)).wait(), links=links)
        >>> [round(t, 4) for t in done.clocks_s]
        [0.012, 0.012, 0.012, 0.012]
    """
    if len(links.ranks) != size:
        raise UserError(f"simulate_ranks needs a link for each of {size} ranks, got {len(links.ranks)}")
    world = SimulatedWorld(links, timeout_s)

    def work(rank: int) -> T:
        comm = world.comm(rank)
        return body(wrap(comm) if wrap else comm)

    results = launch(size, work, timeout_s=timeout_s, ended=world.mail.lose)
    return Simulated(results, list(world.now_s))
