"""Counts what crosses links: bytes, rounds and calls by verb and peer; always on, costs microseconds a call."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omnizen.comm.mail_wrapper import Answer, MailWrapper
from omnizen.comm.wrapper import Call, Wrapper, parts_bytes
from omnizen.protocols import Comm, Later, Mailbox, Pending
from omnizen.types import Parts, Traffic

CONTROL = frozenset({"barrier"})
"""Verbs that carry no gradients: counted, but in no total."""


@dataclass(frozen=True, slots=True)
class MeterReading:
    """What one rank sent and received so far; the difference of two readings is what happened between them.

    Args:
        tx: bytes sent by (verb, world rank of the peer).
        rx: bytes received by (verb, world rank of the peer).
        rounds: messages that followed one another, by verb.
        calls: uses by verb.
    """

    tx: Mapping[tuple[str, int], float] = field(default_factory=dict)
    rx: Mapping[tuple[str, int], float] = field(default_factory=dict)
    rounds_by_verb: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)

    def __sub__(self, before: MeterReading) -> MeterReading:
        return MeterReading(
            {key: n - before.tx.get(key, 0.0) for key, n in self.tx.items()},
            {key: n - before.rx.get(key, 0.0) for key, n in self.rx.items()},
            {verb: n - before.rounds_by_verb.get(verb, 0) for verb, n in self.rounds_by_verb.items()},
            {verb: n - before.calls.get(verb, 0) for verb, n in self.calls.items()},
        )

    @property
    def tx_bytes(self) -> float:
        """Bytes sent, without control verbs."""
        return sum(n for (verb, _), n in self.tx.items() if verb not in CONTROL)

    @property
    def rx_bytes(self) -> float:
        """Bytes received, without control verbs."""
        return sum(n for (verb, _), n in self.rx.items() if verb not in CONTROL)

    @property
    def rounds(self) -> int:
        """Rounds, without control verbs."""
        return sum(n for verb, n in self.rounds_by_verb.items() if verb not in CONTROL)

    @property
    def traffic(self) -> Traffic:
        """The totals in the form in which reducers predict them."""
        return Traffic(self.rx_bytes, self.tx_bytes, self.rounds)

    def tx_bytes_by_peer(self) -> dict[int, float]:
        """Return the bytes sent to each world rank."""
        return _by_peer(self.tx)

    def rx_bytes_by_peer(self) -> dict[int, float]:
        """Return the bytes received from each world rank."""
        return _by_peer(self.rx)


def _by_peer(flows: Mapping[tuple[str, int], float]) -> dict[int, float]:
    totals: Counter[int] = Counter()
    for (_, peer), n in flows.items():
        totals[peer] += n  # type: ignore[assignment]  # a Counter adds floats as well
    return dict(sorted(totals.items()))


class _Counts:
    """Running totals, shared by a comm and its sub-groups."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tx: dict[tuple[str, int], float] = {}
        self.rx: dict[tuple[str, int], float] = {}
        self.rounds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def add(self, flows: dict[tuple[str, int], float], verb: str, by_peer: Mapping[int, float]) -> None:
        with self.lock:
            for peer, n in by_peer.items():
                flows[verb, peer] = flows.get((verb, peer), 0.0) + n


class Metered(Wrapper):
    """A comm that counts its traffic by the metering rule of ``Call.tx_bytes``.

    Sent bytes count when a verb is called, received ones when its result is waited for. Sub-groups count into
    the same totals, under world ranks.

    Args:
        inner: the comm to count.

    Example:
        >>> from omnizen.comm.threads import run_ranks
        >>> import torch
        >>> def body(comm):
        ...     comm.all_gather([torch.zeros(10)]).wait()
        ...     return comm.reading().rx_bytes
        >>> run_ranks(3, body, wrap=Metered)
        [96.0, 96.0, 96.0]
    """

    def __init__(self, inner: Comm, *, members: Sequence[int] | None = None, counts: _Counts | None = None) -> None:
        super().__init__(inner)
        self._world_ranks = list(range(inner.size)) if members is None else list(members)
        self._counts = _Counts() if counts is None else counts

    def around(self, call: Call) -> Pending[Any]:
        """Count a call and, when its result comes, what it brought."""
        counts = self._counts
        pending = call.start()  # first: a call that is refused sends nothing
        counts.add(counts.tx, call.verb, self._world(call.tx_bytes()))
        with counts.lock:
            counts.rounds[call.verb] += call.rounds()
            counts.calls[call.verb] += 1

        def finish() -> Any:
            result = pending.wait()
            counts.add(counts.rx, call.verb, self._world(call.rx_bytes(result)))
            return result

        return Later(finish)

    def rewrap(self, inner: Comm, ranks: Sequence[int]) -> Metered:
        """Let a sub-group count into the same totals."""
        return Metered(inner, members=[self._world_ranks[r] for r in ranks], counts=self._counts)

    def rewrap_mailbox(self, inner: Mailbox) -> Mailbox:
        """Let a mailbox count into the same totals, whichever comm made it."""
        return MeteredMailbox(inner, self._counts, self._world_ranks)

    def reading(self) -> MeterReading:
        """Return the totals so far."""
        counts = self._counts
        with counts.lock:
            return MeterReading(dict(counts.tx), dict(counts.rx), dict(counts.rounds), dict(counts.calls))

    def _world(self, by_rank: Mapping[int, float]) -> dict[int, float]:
        return {self._world_ranks[rank]: n for rank, n in by_rank.items()}


class MeteredMailbox(MailWrapper):
    """Counts questions and answers as verb "ask": parts cost their bytes and ``SIZE_BYTES`` each, two rounds.

    Both ranks count, each when it sends and when it has received.
    """

    def __init__(self, inner: Mailbox, counts: _Counts, world_ranks: Sequence[int]) -> None:
        super().__init__(inner)
        self._counts, self._world_ranks = counts, world_ranks

    def asking(self, dest: int, parts: Parts) -> Pending[Parts]:
        """Count a question and, when it comes, its answer."""
        pending = self.inner.ask(dest, parts)
        if dest == self.rank:
            return pending
        self._add(self._counts.tx, dest, parts)
        with self._counts.lock:
            self._counts.rounds["ask"] += 2
            self._counts.calls["ask"] += 1

        def finish() -> Parts:
            answer = pending.wait()
            self._add(self._counts.rx, dest, answer)
            return answer

        return Later(finish)

    def answering(self, source: int, parts: Parts, answer: Answer) -> Parts:
        """Count a question that came, and what is answered."""
        found = answer(source, parts)
        if source != self.rank:
            self._add(self._counts.rx, source, parts)
            self._add(self._counts.tx, source, found)
        return found

    def _add(self, flows: dict[tuple[str, int], float], peer: int, parts: Parts) -> None:
        self._counts.add(flows, "ask", {self._world_ranks[peer]: parts_bytes(parts)})
