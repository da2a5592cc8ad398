"""Links and what they cost: how long rounds of messages take on links of given rates and latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from omnizen.errors import UserError

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLink:
    """The link that joins one rank to the network.

    Args:
        up_bytes_per_s: rate at which the rank sends.
        down_bytes_per_s: rate at which it receives.
        latency_s: time of an empty message between the rank and the network's middle.
    """

    up_bytes_per_s: float
    down_bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.up_bytes_per_s, self.down_bytes_per_s) <= 0 or self.latency_s < 0:
            raise UserError(f"a link needs positive rates and a latency of at least 0, got {self}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PairLink:
    """The way from one rank to another, where it differs from what their own links give."""

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a simulated world.

    Args:
        ranks: one for each rank.
        pairs: ways by (source, destination) that differ.

    Example:
        >>> links = Links.uniform(4, bandwidth_bytes_per_s=12.5e6, latency_s=1e-4)
        >>> links.matrices()[0].shape
        (4, 4)
    """

    ranks: Sequence[RankLink]
    pairs: Mapping[tuple[int, int], PairLink] = field(default_factory=dict)

    @classmethod
    def uniform(cls, size: int, *, bandwidth_bytes_per_s: float, latency_s: float = 0.0) -> Links:
        """Give each rank the same link; ``latency_s`` is that of a message from rank to rank."""
        rate = bandwidth_bytes_per_s
        return cls([RankLink(up_bytes_per_s=rate, down_bytes_per_s=rate, latency_s=latency_s / 2)] * size)

    def matrices(self) -> tuple[Floats, Floats]:
        """Return bandwidth in bytes/s and latency in s, each ``[source, destination]``."""
        up = np.array([link.up_bytes_per_s for link in self.ranks])
        down = np.array([link.down_bytes_per_s for link in self.ranks])
        near = np.array([link.latency_s for link in self.ranks])
        bandwidth, latency = np.minimum.outer(up, down), np.add.outer(near, near)
        for (source, dest), pair in self.pairs.items():
            bandwidth[source, dest], latency[source, dest] = pair.bandwidth_bytes_per_s, pair.latency_s
        return bandwidth, latency


def meet(start_s: Floats, header_bytes: float, bandwidth: Floats, latency: Floats) -> Floats:
    """Return when each rank has heard from all others, if each sends all others ``header_bytes``.

    Args:
        start_s: ``[n]``, when each rank begins.
        header_bytes: bytes of one message.
        bandwidth: ``[n, n]``, bytes/s from source to destination.
        latency: ``[n, n]``, seconds.
    """
    num_ranks = len(start_s)
    if num_ranks == 1:
        return start_s.copy()
    heard = start_s[:, None] + latency + header_bytes * (num_ranks - 1) / bandwidth
    np.fill_diagonal(heard, start_s)
    return heard.max(axis=0)


def swap(start_s: Floats, num_bytes: Floats, bandwidth: Floats, latency: Floats) -> Floats:
    """Return when each rank has finished the scheduled rounds of an all-to-all.

    In round i a rank sends to ``rank + i`` and receives from ``rank - i``; a message begins when both are in that
    round, and a rank goes on when both its messages are through; empty messages are left out.

    Args:
        start_s: ``[n]``, when each rank begins.
        num_bytes: ``[n, n]`` from source to destination.
        bandwidth: ``[n, n]``, bytes/s.
        latency: ``[n, n]``, seconds.
    """
    ready, ranks = start_s.copy(), np.arange(len(start_s))
    for i in range(1, len(ranks)):
        source = np.roll(ranks, i)
        active = num_bytes[source, ranks] > 0
        sent = np.maximum(ready[source], ready) + num_bytes[source, ranks] / bandwidth[source, ranks]
        arrived = np.where(active, sent + latency[source, ranks], ready)
        sent_by_source = np.where(active, sent, ready[source])
        ready = np.maximum(arrived, np.roll(sent_by_source, -i))
    return ready


def ring(start_s: Floats, payload_bytes: float, bandwidth: Floats, latency: Floats) -> Floats:
    """Return when a ring all-reduce ends, ``2 (n-1)`` rounds of ``1/n`` of the bytes, paced by the slowest link."""
    num_ranks = len(start_s)
    if num_ranks == 1:
        return start_s.copy()
    ranks = np.arange(num_ranks)
    after = np.roll(ranks, -1)
    round_s = (payload_bytes / num_ranks / bandwidth[ranks, after] + latency[ranks, after]).max()
    return np.full(num_ranks, start_s.max() + 2 * (num_ranks - 1) * round_s)
