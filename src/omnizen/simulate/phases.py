"""What a reduction does on the links, phase by phase: when each rank begins, and when it is through.

The rounds are those of ``comm.links``, so that a simulated collective takes as long here as with real data there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from omnizen.comm.links import Floats
from omnizen.simulate.network import Ints, Network

MOST_ROUNDS = 512
"""Of more rounds of an all-to-all, so many are taken, evenly spread, each for several."""


class Phase(Protocol):
    """A part of a reduction that all ranks take part in."""

    def run(self, start_s: Floats, net: Network) -> Floats:
        """Return when each rank is through, if it begins at ``start_s``; both ``[n]``."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A time that is known from elsewhere, from when the last rank is there."""

    seconds: float

    def run(self, start_s: Floats, net: Network) -> Floats:
        """Let all end together."""
        return np.full(net.size, start_s.max() + (self.seconds if net.size > 1 else 0.0))


@dataclass(frozen=True, slots=True)
class Ring:
    """An all-reduce of so many bytes in a ring: ``2 (n - 1)`` rounds, paced by the slowest link."""

    nbytes: float

    def run(self, start_s: Floats, net: Network) -> Floats:
        """Let all end together."""
        n = net.size
        if n == 1:
            return start_s.copy()
        ranks = np.arange(n)
        after = (ranks + 1) % n
        round_s = (self.nbytes / n / net.rate(ranks, after) + net.delay(ranks, after)).max()
        return np.full(n, start_s.max() + 2 * (n - 1) * round_s)


@dataclass(frozen=True, slots=True)
class Meet:
    """Each rank gives all others a header of so many bytes and hears from all of them."""

    nbytes: float

    def run(self, start_s: Floats, net: Network) -> Floats:
        """Let each go on when it has heard from the last one."""
        n = net.size
        if n == 1:
            return start_s.copy()
        header = self.nbytes * (n - 1)
        if net.pairs is not None:
            heard = start_s[:, None] + net.pairs[1] + header / net.pairs[0]
            np.fill_diagonal(heard, start_s)
            return heard.max(axis=0)
        # A way is as slow as the slower of its ends, so the last message is the last of two kinds.
        slow_senders = _max_of_others(start_s + net.near + header / net.up)
        slow_receivers = _max_of_others(start_s + net.near) + header / net.down
        return np.maximum(start_s, np.maximum(slow_senders, slow_receivers) + net.near)


def _max_of_others(values: Floats) -> Floats:
    first = int(values.argmax())
    out = np.full(len(values), values[first])
    out[first] = np.delete(values, first).max()
    return out


@dataclass(frozen=True, slots=True)
class Swap:
    """An all-to-all in scheduled rounds: in round i a rank sends to ``rank + i`` and receives from ``rank - i``.

    Args:
        nbytes: of one message; one number, one for each source ``[n]``, or from source to destination ``[n, n]``.
    """

    nbytes: float | Floats

    def run(self, start_s: Floats, net: Network) -> Floats:
        """Let each go on from round to round with those that it meets there."""
        n = net.size
        if n == 1:
            return start_s.copy()
        distances = np.unique(np.linspace(1, n - 1, min(n - 1, MOST_ROUNDS)).round().astype(np.int64))
        each = (n - 1) / len(distances)
        sizes = np.asarray(self.nbytes, dtype=np.float64)
        ready, ranks = np.asarray(start_s, dtype=np.float64).copy(), np.arange(n)
        for i in distances:
            source = (ranks - i) % n
            amount = sizes[source, ranks] if sizes.ndim == 2 else sizes[source] if sizes.ndim else sizes
            sent = np.maximum(ready[source], ready) + each * amount / net.rate(source, ranks)
            arrived = np.where(amount > 0, sent + each * net.delay(source, ranks), ready)
            sent_by_source = np.where(amount > 0, sent, ready[source])
            ready = np.maximum(arrived, sent_by_source[(ranks + i) % n])
        return ready


@dataclass(frozen=True, slots=True)
class Doubling:
    """Recursive doubling: at level i, ranks that differ in bit i swap what they hold.

    Ranks beyond a power of two give theirs to a partner before and get the sum after.

    Args:
        held: bytes that a rank holds at each level, and at last the whole sum's; the first is its own contribution.
        headers: bytes of header in a message.
    """

    held: Sequence[float]
    headers: float = 16.0

    def run(self, start_s: Floats, net: Network) -> Floats:
        """Let each go on when what it receives at a level is there and what it sends is out."""
        n = net.size
        levels = n.bit_length() - 1
        core = 1 << levels
        ready = np.asarray(start_s, dtype=np.float64).copy()
        extra = np.arange(core, n)
        if len(extra):
            self._hop(ready, extra, extra - core, self.held[0], net)
        ranks = np.arange(core)
        for level in range(levels):
            self._hop(ready, ranks ^ (1 << level), ranks, self.held[min(level, len(self.held) - 1)], net)
        if len(extra):
            self._hop(ready, extra - core, extra, self.held[-1], net)
        return ready

    def _hop(self, ready: Floats, source: Ints, dest: Ints, nbytes: float, net: Network) -> None:
        sent = ready[source] + (nbytes + self.headers) / net.rate(source, dest)
        arrived = np.maximum(ready[dest], sent + 2 * net.delay(source, dest))  # sizes, then data
        ready[source] = sent
        ready[dest] = np.maximum(ready[dest], arrived)
