"""Loopback paced in software: results come no sooner than their bytes would have crossed a link of a given rate.

A stand-in for shaped links where namespaces cannot be made; never a measurement of a wire.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from omnizen.comm.mail_wrapper import Answer, MailWrapper
from omnizen.comm.wrapper import Call, Wrapper, parts_bytes
from omnizen.errors import UserError
from omnizen.protocols import Comm, Later, Mailbox, Pending
from omnizen.spans import span
from omnizen.types import Parts


class Clock(Protocol):
    """Where time comes from; tests pass one of their own."""

    def monotonic(self) -> float:
        """Return seconds since some fixed point."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class _WallClock:
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


class PacedLink:
    """One modelled full-duplex link: what is put on it crosses one after another.

    Args:
        rate_bytes_per_s: bytes that cross in a second, each way.
        clock: source of time.

    Example:
        >>> link = PacedLink(100.0)
        >>> link.cross(5.0, 200), link.cross(5.5, 100), link.cross(20.0, 100)
        (7.0, 8.0, 21.0)
    """

    def __init__(self, rate_bytes_per_s: float, clock: Clock | None = None) -> None:
        if not isinstance(rate_bytes_per_s, int | float) or not rate_bytes_per_s > 0:
            raise UserError(f"a link's rate is positive, got {rate_bytes_per_s!r} bytes/s")
        self.rate_bytes_per_s = rate_bytes_per_s
        self.clock: Clock = _WallClock() if clock is None else clock
        self._free_at_s = float("-inf")
        self._lock = threading.Lock()

    def cross(self, issued_s: float, num_bytes: float) -> float:
        """Put bytes on the link that were ready at ``issued_s``; returns when the last one has crossed."""
        with self._lock:
            self._free_at_s = max(issued_s, self._free_at_s) + num_bytes / self.rate_bytes_per_s
            return self._free_at_s

    def sleep_until(self, then_s: float) -> None:
        """Wait until a time of the link's clock."""
        left_s = then_s - self.clock.monotonic()
        if left_s > 0:
            self.clock.sleep(left_s)


class Paced(Wrapper):
    """A comm whose results are held back until their bytes would have crossed a link of the given rate.

    Bytes follow the metering rule, the larger of sent and received. A result that is waited for late has been
    crossing meanwhile, so overlap with computation counts. Sub-groups share the link.

    Args:
        inner: the comm that really carries the bytes.
        rate_bytes_per_s: rate of this rank's link, each way; or a link to share.
    """

    def __init__(self, inner: Comm, rate_bytes_per_s: float | PacedLink) -> None:
        super().__init__(inner)
        given = rate_bytes_per_s
        self.link = given if isinstance(given, PacedLink) else PacedLink(given)

    def around(self, call: Call) -> Pending[Any]:
        """Hold a result back until it would have come."""
        issued_s = self.link.clock.monotonic()
        pending = call.start()

        def finish() -> Any:
            result = pending.wait()
            num_bytes = max(sum(call.tx_bytes().values()), sum(call.rx_bytes(result).values()))
            with span("wire", call.verb):
                self.link.sleep_until(self.link.cross(issued_s, num_bytes))
            return result

        return Later(finish)

    def rewrap(self, inner: Comm, ranks: Sequence[int]) -> Paced:
        """Let a sub-group use the same link."""
        del ranks
        return Paced(inner, self.link)

    def rewrap_mailbox(self, inner: Mailbox) -> Mailbox:
        """Let a mailbox use the same link."""
        return PacedMailbox(inner, self.link)


class PacedMailbox(MailWrapper):
    """Questions and answers cross the link of who asks and that of who answers."""

    def __init__(self, inner: Mailbox, link: PacedLink) -> None:
        super().__init__(inner)
        self.link = link

    def asking(self, dest: int, parts: Parts) -> Pending[Parts]:
        """Hold an answer back until question and answer would have crossed."""
        issued_s = self.link.clock.monotonic()
        pending = self.inner.ask(dest, parts)

        def finish() -> Parts:
            answer = pending.wait()
            if dest != self.rank:
                with span("wire", "ask"):
                    self._cross(issued_s, parts, answer)
            return answer

        return Later(finish)

    def answering(self, source: int, parts: Parts, answer: Answer) -> Parts:
        """Hold an answer back until it and its question would have crossed this rank's link."""
        issued_s = self.link.clock.monotonic()
        found = answer(source, parts)
        if source != self.rank:
            self._cross(issued_s, parts, found)
        return found

    def _cross(self, issued_s: float, out: Parts, back: Parts) -> None:
        num_bytes = max(parts_bytes(out), parts_bytes(back))
        self.link.sleep_until(self.link.cross(issued_s, num_bytes))
