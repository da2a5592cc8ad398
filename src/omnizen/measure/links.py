"""Latency and bandwidth between ranks, measured over the comm that training will use.

Pairs are measured in disjoint matchings: nobody talks to two others at once, so a rank's link carries one flow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from omnizen.measure.facts import LinkFacts
from omnizen.protocols import Comm

PINGS = 5
EXCHANGE_ROUNDS = 2
"""Rounds of one exchange as ``Traffic`` counts them: the sizes, then the data."""
FIRST_BYTES = 64 * 1024
ENOUGH_S = 0.05
GROWTH = 8
LARGEST_BYTES = 64 * 2**20


def measure_links(
    comm: Comm, budget_s: float = 2.0, *, clock: Callable[[], float] = time.perf_counter
) -> list[LinkFacts]:
    """Measure every pair in both directions, or as many as the budget allows (collective).

    Messages grow until one takes 50 ms; each size is sent twice and the second counts, because the first uses up
    what a shaped link lets through at once. Pairs that the budget leaves out are derived from the
    others: the slower of the sender's best outgoing and the receiver's best incoming link; they are marked
    ``estimated``.

    Args:
        comm: all ranks call this together and get the same result.
        budget_s: seconds after which no new matching is begun; the first is always measured.
        clock: seconds now, on the clock that the comm's transfers take time on.
    """
    found: dict[tuple[int, int], tuple[float, float]] = {}
    started = clock()
    for matching in matchings(comm.size):
        spent_s = _agree(comm, [clock() - started])[0][0]  # rank 0's clock decides for all
        if found and spent_s >= budget_s:
            break
        found |= _measure_matching(comm, matching, budget_s, clock)
    return _complete(found, comm.size)


def matchings(size: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs that together hold every pair once (the circle method).

    Example:
        >>> matchings(4)
        [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    seats: list[int | None] = [*range(size), *([None] if size % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        rounds.append(sorted((min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def _measure_matching(
    comm: Comm, matching: list[tuple[int, int]], budget_s: float, clock: Callable[[], float]
) -> dict[tuple[int, int], tuple[float, float]]:
    """Return (latency, bandwidth) of each direction of the pairs of one matching, equal on all ranks."""
    peer = next((b if a == comm.rank else a for a, b in matching if comm.rank in (a, b)), None)
    found: dict[tuple[int, int], tuple[float, float]] = {}
    for forward in (True, False):
        directed = [(a, b) if forward else (b, a) for a, b in matching]
        sending = any(source == comm.rank for source, _ in directed)
        pings = [_send_and_ack(comm, peer, sending, 1, clock) for _ in range(PINGS + 1)][1:]
        # There and back is two exchanges; the pair's first exchange pays for opening the connection.
        latency = _agree(comm, [median(pings) / (2 * EXCHANGE_ROUNDS)])
        nbytes = {source: FIRST_BYTES for source, _ in directed}
        rate = dict.fromkeys(nbytes, 0.0)
        began = clock()
        while nbytes:
            mine = nbytes.get(comm.rank if sending else (peer if peer is not None else -1))
            active = peer if mine is not None else None
            for _ in range(2):
                elapsed_s = _send_and_ack(comm, active, sending, mine or 1, clock)
            seconds = _agree(comm, [elapsed_s, clock() - began])
            out_of_time = seconds[0][1] >= budget_s / 4
            for source, sent in list(nbytes.items()):
                # The message and its acknowledgement are two exchanges; what is left is the bytes' own time.
                own_s = max(seconds[source][0] - 2 * EXCHANGE_ROUNDS * latency[source][0], 1e-9)
                rate[source] = sent / own_s
                if own_s >= ENOUGH_S or out_of_time or sent >= LARGEST_BYTES:
                    del nbytes[source]
                else:
                    wanted = sent * min(GROWTH, 1.2 * ENOUGH_S / own_s)
                    nbytes[source] = min(LARGEST_BYTES, max(int(wanted), 2 * sent))
        found |= {(s, d): (latency[s][0], rate[s]) for s, d in directed}
    return found


def _send_and_ack(comm: Comm, peer: int | None, sending: bool, nbytes: int, clock: Callable[[], float]) -> float:
    """Send to the peer and wait for its answer of one byte, or the other way round; without a peer, sit it out."""
    message = torch.zeros(nbytes, dtype=torch.uint8, device=comm.device)
    answer = message[:1]
    began = clock()
    for outgoing in (sending, not sending):
        out = {peer: [message if sending else answer]} if peer is not None and outgoing else {}
        sources = [peer] if peer is not None and not outgoing else []
        comm.exchange(out, sources, like=[answer]).wait()
    return clock() - began


def _agree(comm: Comm, mine: list[float]) -> list[list[float]]:
    """Give every rank's numbers to every rank."""
    gathered = comm.all_gather([torch.tensor(mine, dtype=torch.float64, device=comm.device)]).wait()
    return [part.tolist() for (part,) in gathered]


def _complete(found: dict[tuple[int, int], tuple[float, float]], size: int) -> list[LinkFacts]:
    links = []
    for source in range(size):
        for dest in range(size):
            if source == dest:
                continue
            estimated = (source, dest) not in found
            latency_s, rate = _estimate(found, source, dest) if estimated else found[source, dest]
            links.append(
                LinkFacts(
                    source=source,
                    dest=dest,
                    latency_s=max(latency_s, 0.0),
                    bandwidth_bytes_per_s=rate,
                    estimated=estimated,
                )
            )
    return links


def _estimate(found: dict[tuple[int, int], tuple[float, float]], source: int, dest: int) -> tuple[float, float]:
    """Derive a pair from what its ends did with others; with the odd rank out, from all pairs."""
    up = [v for (s, _), v in found.items() if s == source] or list(found.values())
    down = [v for (_, d), v in found.items() if d == dest] or list(found.values())
    latency_s = max(median(v[0] for v in up), median(v[0] for v in down))
    return latency_s, min(max(v[1] for v in up), max(v[1] for v in down))
