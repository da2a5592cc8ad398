"""What the verbs of a comm cost on the wire, by the rule that the meter follows."""

from __future__ import annotations

from collections.abc import Sequence

from omnizen.types import Traffic

HEADER_BYTES = 8
"""Each part that goes to a peer is announced by its length."""


def all_reduce(payload_bytes: float, size: int) -> Traffic:
    """Ring all-reduce of a payload that all ranks hold: ``2 (n - 1) / n M`` each way."""
    moved = 2 * (size - 1) / size * payload_bytes
    return Traffic(moved, moved, 2 * (size - 1))


def scheduled(rx_bytes: float, tx_bytes: float, parts: int, size: int) -> Traffic:
    """An all-gather or all-to-all with these bytes of payload at one rank: one round of lengths, n - 1 of data."""
    headers = HEADER_BYTES * parts * (size - 1)
    return Traffic(rx_bytes + headers, tx_bytes + headers, size if size > 1 else 0)


def hop(rx_bytes: float | None, tx_bytes: float | None, parts: int) -> Traffic:
    """One exchange between a pair, in which a rank may only send or only receive (None: nothing goes that way)."""
    headers = HEADER_BYTES * parts
    rx = 0.0 if rx_bytes is None else rx_bytes + headers
    tx = 0.0 if tx_bytes is None else tx_bytes + headers
    return Traffic(rx, tx, 2)


def owners(pushes: Sequence[float], pulls: Sequence[float], parts: int = 2) -> Traffic:
    """An all-to-all to owners and an all-gather from them, at the busiest rank.

    Args:
        pushes: bytes that one rank has for each owner.
        pulls: bytes that each owner has for all.
        parts: of each message.
    """
    size, own, union = len(pushes), sum(pushes), sum(pulls)
    pairs = list(zip(pushes, pulls, strict=True))
    received = max((size - 1) * push + union - pull for push, pull in pairs)
    sent = max(own - push + (size - 1) * pull for push, pull in pairs)
    slowest_push = max(max((size - 1) * push, own - push) for push in pushes)
    slowest_pull = max(max((size - 1) * pull, union - pull) for pull in pulls)
    headers = scheduled(0.0, 0.0, parts, size)
    return Traffic(received, sent, 0, slowest_push + slowest_pull) + headers + headers
