"""What a collective gets from a set of links: the slowest one that it must use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from omnizen.errors import UserError
from omnizen.measure.facts import LinkFacts, MeetingFacts

NOISE = 0.25
"""A pair that was measured this share slower than both its ends can do was disturbed; beyond, it is slow."""


@dataclass(frozen=True, slots=True)
class LinkModel:
    """The links of one job as a collective meets them.

    Args:
        size: ranks.
        latency_s: seconds that a round costs beyond its bytes, at the rank that is farthest away, when all ranks
            are in it.
        ring_bytes_per_s: bandwidth of a ring, that of its slowest neighbours.
        spread_bytes_per_s: bandwidth of traffic spread evenly over all peers, at the slowest rank.
        slowest_bytes_per_s: bandwidth of the slowest pair.
        ring_latency_s: the same for the rounds of the backend's own all-reduce.
    """

    size: int
    latency_s: float
    ring_bytes_per_s: float
    spread_bytes_per_s: float
    slowest_bytes_per_s: float
    ring_latency_s: float

    @classmethod
    def uniform(cls, size: int, bandwidth_bytes_per_s: float, latency_s: float = 0.0) -> LinkModel:
        """Make the model of equal links between all ranks."""
        rate = bandwidth_bytes_per_s
        return cls(size, latency_s, rate, rate, rate, latency_s)

    @classmethod
    def of(cls, links: Sequence[LinkFacts], size: int, meetings: MeetingFacts | None = None) -> LinkModel:
        """Make the model from measured pairs.

        Args:
            meetings: how long all ranks take together for next to nothing; None where it was not measured.

        Raises:
            UserError: when a pair of the job has no link facts.
        """
        if size == 1:
            return cls.uniform(1, math.inf)
        by_pair = {(link.source, link.dest): link for link in links}
        missing = next((pair for pair in _pairs(size) if pair not in by_pair), None)
        if missing:
            a, b = missing
            raise UserError(f"the facts hold no link from rank {a} to rank {b}; run `omnizen measure` again")
        pairs = list(_pairs(size))
        rate = without_noise({pair: by_pair[pair].bandwidth_bytes_per_s for pair in pairs}, size)
        delay = {pair: by_pair[pair].latency_s for pair in pairs}
        peers = {r: [p for p in range(size) if p != r] for r in range(size)}
        # Equal shares to each peer one after another: the mean time per byte is what counts, in each direction.
        per_byte = [
            max(sum(1 / rate[r, p] for p in peers[r]), sum(1 / rate[p, r] for p in peers[r])) / (size - 1)
            for r in range(size)
        ]
        # The median over a rank's pairs forgives one noisy pair; the maximum keeps the rank that is far away.
        latency_s = max(median([delay[r, p] for p in peers[r]] + [delay[p, r] for p in peers[r]]) for r in peers)
        ring_latency_s = latency_s
        if meetings is not None:
            # A pair that pings is faster than a round that all ranks are in: the last one is waited for.
            latency_s = max(latency_s, meetings.gather_s / size)
            ring_latency_s = meetings.sum_s / (2 * (size - 1))
        return cls(
            size,
            latency_s=latency_s,
            ring_bytes_per_s=min(rate[r, (r + 1) % size] for r in range(size)),
            spread_bytes_per_s=1 / max(per_byte),
            slowest_bytes_per_s=min(rate.values()),
            ring_latency_s=ring_latency_s,
        )


def _pairs(size: int) -> Iterator[tuple[int, int]]:
    return ((a, b) for a in range(size) for b in range(size) if a != b)


def without_noise(rate: dict[tuple[int, int], float], size: int) -> dict[tuple[int, int], float]:
    """Replace what a disturbance slowed: other work takes time, and a collective waits for its slowest pair.

    What an end can do is the upper quartile of its pairs, so that no single lucky measurement decides.
    """

    def upper(values: list[float]) -> float:
        return sorted(values)[-1 - len(values) // 4]

    up = [upper([v for (source, _), v in rate.items() if source == r]) for r in range(size)]
    down = [upper([v for (_, dest), v in rate.items() if dest == r]) for r in range(size)]
    could = {(source, dest): min(up[source], down[dest]) for source, dest in rate}
    return {pair: could[pair] if (1 - NOISE) * could[pair] <= v < could[pair] else v for pair, v in rate.items()}
