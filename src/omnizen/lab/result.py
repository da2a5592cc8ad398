"""What came of a command that ran once on each host."""

from __future__ import annotations

from dataclasses import dataclass

TIMED_OUT = 124
"""Exit code of a run that was stopped by its time limit, as ``timeout`` has it."""
HEADER_BYTES = 66
"""Of a TCP packet: Ethernet 14, IPv4 20, TCP 20 and its time stamps 12."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabResult:
    """The end of a lab run, host by host.

    Args:
        returncodes: exit code, or minus the number of the signal that ended the host's process.
        host_seconds: from the host's start to its end, as measured.
        seconds: from the first start to the last end, as measured.
        tails: each host's last lines of output.
        tx_bytes: sent over each host's link, all headers included; None where hosts share an interface.
        rx_bytes: received.
        tx_packets: packets sent, each of at most 1,500 bytes and the 14 of Ethernet.
        rx_packets: packets received.
        factor: dilation; seconds / factor are those of real machines.
        network: ``"namespaces, shaped links"`` or ``"loopback, paced in software"``.
        notes: what the lab did beside running the command: hosts stopped, processes killed, and why.
        first_failure: the host that failed first.
        timed_out: whether the time limit stopped the hosts.
        interrupted: the signal that told the lab to stop, or None.
    """

    returncodes: tuple[int, ...]
    host_seconds: tuple[float, ...]
    seconds: float
    tails: tuple[tuple[str, ...], ...]
    tx_bytes: tuple[int, ...] | None = None
    rx_bytes: tuple[int, ...] | None = None
    tx_packets: tuple[int, ...] | None = None
    rx_packets: tuple[int, ...] | None = None
    factor: float = 1.0
    network: str = ""
    notes: tuple[str, ...] = ()
    first_failure: int | None = None
    timed_out: bool = False
    interrupted: int | None = None

    @property
    def tx_payload_bytes(self) -> tuple[int, ...] | None:
        """What each host's programs sent over TCP: the bytes on the wire without the packets' headers."""
        return _without_headers(self.tx_bytes, self.tx_packets)

    @property
    def rx_payload_bytes(self) -> tuple[int, ...] | None:
        """What each host's programs received over TCP."""
        return _without_headers(self.rx_bytes, self.rx_packets)

    @property
    def exit_code(self) -> int:
        """The code of the host that failed first as a shell has it, 0 when none did."""
        if self.interrupted is not None:
            return 128 + self.interrupted
        if self.timed_out:
            return TIMED_OUT
        if self.first_failure is None:
            return 0
        code = self.returncodes[self.first_failure]
        return 128 - code if code < 0 else code


def _without_headers(counts: tuple[int, ...] | None, packets: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if counts is None or packets is None:
        return None
    return tuple(count - HEADER_BYTES * number for count, number in zip(counts, packets, strict=True))
