"""The links of an imagined cluster, by rank, or pair by pair where that is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnizen.comm.links import Floats, Links
from omnizen.errors import UserError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Network:
    """Links of n ranks; memory grows with n unless pairs are given.

    Args:
        up: ``[n]``, bytes/s at which each rank sends.
        down: ``[n]``, bytes/s at which it receives.
        near: ``[n]``, seconds of an empty message between the rank and the network's middle.
        pairs: bandwidth and latency ``[n, n]`` from source to destination, which then count instead.

    Example:
        >>> Network.uniform(4096, 12.5e6, 1e-4).size
        4096
    """

    up: Floats
    down: Floats
    near: Floats
    pairs: tuple[Floats, Floats] | None = None

    def __post_init__(self) -> None:
        if not len(self.up) == len(self.down) == len(self.near) > 0:
            raise UserError("a network needs as many rates up as down and as latencies, one for each rank")
        if min(self.up.min(), self.down.min()) <= 0 or self.near.min() < 0:
            raise UserError("a network needs positive rates and latencies of at least 0")

    @property
    def size(self) -> int:
        """Ranks."""
        return len(self.up)

    @classmethod
    def uniform(cls, size: int, bytes_per_s: float, latency_s: float = 0.0) -> Network:
        """Give each rank the same link; ``latency_s`` is that of a message from rank to rank."""
        rate = np.full(size, float(bytes_per_s))
        return cls(rate, rate.copy(), np.full(size, latency_s / 2))

    @classmethod
    def of(cls, links: Links) -> Network:
        """Take over the links of a simulated world."""
        up = np.array([link.up_bytes_per_s for link in links.ranks])
        down = np.array([link.down_bytes_per_s for link in links.ranks])
        near = np.array([link.latency_s for link in links.ranks])
        return cls(up, down, near, links.matrices() if links.pairs else None)

    @classmethod
    def of_pairs(cls, bandwidth: Floats, latency: Floats) -> Network:
        """Take measured pairs; a rank's own rate is that of its best pair, which is what its link can do."""
        apart = ~np.eye(len(bandwidth), dtype=bool)
        if len(bandwidth) == 1:
            return cls.uniform(1, np.inf)
        up = np.where(apart, bandwidth, 0.0).max(axis=1)
        down = np.where(apart, bandwidth, 0.0).max(axis=0)
        rows = [np.median(np.concatenate([latency[r, apart[r]], latency[apart[r], r]])) for r in range(len(up))]
        return cls(up, down, np.array(rows) / 2, (bandwidth, latency))

    def rate(self, source: Ints, dest: Ints) -> Floats:
        """Return bytes/s of each way."""
        if self.pairs is not None:
            return self.pairs[0][source, dest]
        return np.minimum(self.up[source], self.down[dest])

    def delay(self, source: Ints, dest: Ints) -> Floats:
        """Return seconds that an empty message takes on each way."""
        if self.pairs is not None:
            return self.pairs[1][source, dest]
        return self.near[source] + self.near[dest]

    def part(self, members: Ints) -> Network:
        """Return the links among some of the ranks."""
        pairs = self.pairs
        if pairs is not None:
            square = np.ix_(members, members)
            pairs = pairs[0][square], pairs[1][square]
        return Network(self.up[members], self.down[members], self.near[members], pairs)

    def repeated(self, size: int) -> Network:
        """Return the links of ``size`` ranks: rank r is like rank ``r mod n`` here; pairs are forgotten."""
        like = np.arange(size) % self.size
        return Network(self.up[like], self.down[like], self.near[like])
