"""A layer around any Comm: every verb becomes one ``Call``, so a wrapper is written in one method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from omnizen.comm.packing import nbytes
from omnizen.errors import UserError
from omnizen.protocols import Comm, HasMailbox, Mailbox, Pending, Ready
from omnizen.types import Parts

Self = TypeVar("Self", bound="Wrapper")

SIZE_BYTES = 8
"""Bytes that announce the size of one part to one peer."""


def ring_bytes(payload_bytes: int, size: int) -> float:
    """Return what a ring all-reduce of ``payload_bytes`` sends, and receives, at each of ``size`` ranks."""
    return 2 * (size - 1) / size * payload_bytes


def parts_bytes(parts: Parts) -> float:
    """Return what parts cost on the way to one peer: their bytes, and ``SIZE_BYTES`` each."""
    return float(nbytes(parts) + SIZE_BYTES * len(parts))


@dataclass(frozen=True, slots=True)
class Call:
    """One use of a verb, seen from one rank.

    Args:
        verb: its name.
        rank: rank in the group that calls.
        size: ranks of the group.
        out: parts for each destination; for ``all_reduce`` the tensor itself, for this rank.
        start: makes the inner comm begin.
        arrived: from the inner result, the parts that came from each source.
    """

    verb: str
    rank: int
    size: int
    out: Mapping[int, Parts]
    start: Callable[[], Pending[Any]]
    arrived: Callable[[Any], Mapping[int, Parts]]

    def tx_bytes(self) -> dict[int, float]:
        """Return the bytes sent to each other rank, by the metering rule.

        Parts cost their bytes and ``SIZE_BYTES`` each; an all-reduce of M bytes costs ``2 (n-1)/n M`` to the next
        rank of a ring; what a rank gives itself is free.
        """
        if self.verb == "all_reduce":
            return self._ring(self.rank + 1)
        return self._bytes(self.out)

    def rx_bytes(self, result: Any) -> dict[int, float]:
        """Return the bytes received from each other rank, by the same rule."""
        if self.verb == "all_reduce":
            return self._ring(self.rank - 1)
        return self._bytes(self.arrived(result))

    def rounds(self) -> int:
        """Return how many messages follow one another: each pays the latency once."""
        if self.size == 1:
            return 0
        rounds = {"all_reduce": 2 * (self.size - 1), "exchange": 2, "barrier": 1}
        return rounds.get(self.verb, self.size)  # one round of sizes, size - 1 of data

    def _ring(self, neighbour: int) -> dict[int, float]:
        if self.size == 1:
            return {}
        return {neighbour % self.size: ring_bytes(nbytes(self.out[self.rank]), self.size)}

    def _bytes(self, by_peer: Mapping[int, Parts]) -> dict[int, float]:
        return {peer: parts_bytes(parts) for peer, parts in by_peer.items() if peer != self.rank}


class Wrapper:
    """A Comm that passes each call to an inner comm; subclasses override ``around`` and ``rewrap``."""

    def __init__(self, inner: Comm) -> None:
        self.inner = inner
        self.rank, self.size, self.name = inner.rank, inner.size, inner.name
        self.device: torch.device = inner.device
        self.timeout_s = inner.timeout_s

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not there yet while unpickling or copying
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def step(self) -> int | None:
        """Step to name in errors; the inner comm holds it."""
        return self.inner.step

    @step.setter
    def step(self, step: int | None) -> None:
        self.inner.step = step

    def around(self, call: Call) -> Pending[Any]:
        """Carry out one call; the place for a subclass's behaviour."""
        return call.start()

    def rewrap(self: Self, inner: Comm, ranks: Sequence[int]) -> Self:
        """Wrap a sub-group that consists of the given ranks of this comm."""
        raise NotImplementedError

    def _call(
        self,
        verb: str,
        out: Mapping[int, Parts],
        start: Callable[[], Pending[Any]],
        arrived: Callable[[Any], Mapping[int, Parts]],
    ) -> Pending[Any]:
        return self.around(Call(verb, self.rank, self.size, out, start, arrived))

    def all_reduce(self, x: Tensor) -> Pending[Tensor]:
        """Sum over ranks."""
        return self._call("all_reduce", {self.rank: [x]}, lambda: self.inner.all_reduce(x), lambda _: {})

    def all_gather(self, parts: Parts) -> Pending[list[Parts]]:
        """Give every rank's parts to every rank."""
        out = dict.fromkeys(range(self.size), parts)
        return self._call("all_gather", out, lambda: self.inner.all_gather(parts), lambda got: dict(enumerate(got)))

    def all_to_all(self, parts: Sequence[Parts]) -> Pending[list[Parts]]:
        """Send ``parts[j]`` to rank j."""
        out = dict(enumerate(parts))
        return self._call("all_to_all", out, lambda: self.inner.all_to_all(parts), lambda got: dict(enumerate(got)))

    def exchange(self, out: Mapping[int, Parts], sources: Sequence[int], like: Parts) -> Pending[dict[int, Parts]]:
        """Send to and receive from the named ranks only."""
        return self._call("exchange", out, lambda: self.inner.exchange(out, sources, like), lambda got: got)

    def barrier(self) -> None:
        """Return when every rank has called it."""

        def start() -> Pending[None]:
            self.inner.barrier()
            return Ready(None)

        self._call("barrier", {}, start, lambda _: {}).wait()

    def sub(self: Self, ranks: Sequence[int], name: str) -> Self | None:
        """Make a group of some ranks, wrapped alike; None on ranks outside it."""
        made = self.inner.sub(ranks, name)
        return None if made is None else self.rewrap(made, ranks)

    def mailbox(self, name: str) -> Mailbox:
        """Make a mailbox, wrapped alike; called by every rank."""
        if not isinstance(self.inner, HasMailbox):
            raise UserError(
                f"a {type(self.inner).__name__} has no mailboxes; asynchronous groups need one that has"
            )
        return self.rewrap_mailbox(self.inner.mailbox(name))

    def rewrap_mailbox(self, inner: Mailbox) -> Mailbox:
        """Wrap a mailbox of this comm's; as it is unless a subclass says how."""
        return inner

    def close(self) -> None:
        """Close the inner comm."""
        self.inner.close()
