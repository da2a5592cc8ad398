"""Bytes that crossed this worker's link."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omnizen.comm.paced import PacedLink

STATISTICS = Path("/sys/class/net/eth0/statistics")


def interface_bytes() -> tuple[int, int]:
    """Return the bytes sent and received by this namespace's eth0 since it exists, headers included."""
    sent = int((STATISTICS / "tx_bytes").read_text())
    return sent, int((STATISTICS / "rx_bytes").read_text())


def counter(
    shaped: bool, counted: Callable[[], tuple[int, int]] | None
) -> tuple[Callable[[], tuple[int, int]], str]:
    """Choose where this worker's bytes are read, and name the choice.

    Args:
        shaped: the worker has a namespace, and so an interface, of its own.
        counted: payload bytes as the method counts them; None where it does not.
    """
    if shaped:
        return interface_bytes, "interface counters"
    if counted is not None:
        return counted, "payload counted by the method"
    return lambda: (0, 0), "not counted: links are shared with other workers"


class CountingLink(PacedLink):
    """A modelled link that also counts what crosses it."""

    crossed_bytes = 0.0

    def cross(self, issued_s: float, num_bytes: float) -> float:
        """Put bytes on the link."""
        self.crossed_bytes += num_bytes
        return super().cross(issued_s, num_bytes)

    def both_ways(self) -> tuple[int, int]:
        """Return bytes sent and received; a ring and an all-gather do as much of each."""
        return int(self.crossed_bytes), int(self.crossed_bytes)
