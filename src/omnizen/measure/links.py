"""Latency and bandwidth between ranks, measured over the comm that training will use.

Pairs are measured in disjoint matchings: nobody talks to two others at once, so a rank's link carries one flow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from omnizen.measure.facts import LinkFacts, MeetingFacts
from omnizen.protocols import Comm

LEAST_MATCHINGS = 2
PINGS = 5
EXCHANGE_ROUNDS = 2
"""Rounds of one exchange as ``Traffic`` counts them: the sizes, then the data."""
SIZE_BYTES = 8
"""Each part is announced by its size."""
PING_BYTES = 1
FIRST_BYTES = 64 * 1024
ENOUGH_S = 0.05
GROWTH = 8
LARGEST_BYTES = 64 * 2**20
MEETINGS = 15


def measure_links(
    comm: Comm, budget_s: float = 2.0, *, clock: Callable[[], float] = time.perf_counter
) -> list[LinkFacts]:
    """Measure every pair in both directions, or as many as the budget allows (collective).

    Messages grow until one takes 50 ms. Pairs that the budget leaves out are derived from the others: the slower of
    the sender's best outgoing and the receiver's best incoming link; they are marked ``estimated``.

    Args:
        comm: all ranks call this together and get the same result.
        budget_s: seconds after which no new matching is begun; the first two are always measured, because with one
            partner alone nobody can tell which end was slow.
        clock: seconds now, on the clock that the comm's transfers take time on.
    """
    found: dict[tuple[int, int], tuple[float, float]] = {}
    started = clock()
    for number, matching in enumerate(matchings(comm.size)):
        spent_s = _agree(comm, [clock() - started])[0][0]  # rank 0's clock decides for all
        if number >= LEAST_MATCHINGS and spent_s >= budget_s:
            break
        found |= _measure_matching(comm, matching, budget_s, clock)
    return _complete(found, comm.size)


def measure_meetings(
    comm: Comm, *, repeats: int = MEETINGS, clock: Callable[[], float] = time.perf_counter
) -> MeetingFacts:
    """Measure how long all ranks together take for next to nothing (collective, equal on all ranks).

    More than pings between pairs tell: frames go to all peers, threads hand over, the last rank is waited for.

    Args:
        repeats: meetings that are timed, after one that is not; of the slowest rank's times the lower quartile
            counts, because a disturbance only ever adds time.
    """
    byte = torch.zeros(1, dtype=torch.uint8, device=comm.device)
    number = torch.zeros(1, device=comm.device)

    def seconds(meet: Callable[[], object]) -> float:
        taken_s = []
        for _ in range(repeats + 1):
            comm.barrier()
            began = clock()
            meet()
            taken_s.append(clock() - began)
        slowest = sorted(max(turn) for turn in zip(*_agree(comm, taken_s[1:]), strict=True))
        return slowest[len(slowest) // 4]

    return MeetingFacts(
        gather_s=seconds(lambda: comm.all_gather([byte]).wait()),
        sum_s=seconds(lambda: comm.all_reduce(number).wait()),
    )


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
    there_and_back: dict[tuple[int, int], float] = {}
    rate: dict[tuple[int, int], float] = {}
    for directed in (matching, [(b, a) for a, b in matching]):
        sending = any(source == comm.rank for source, _ in directed)
        # The pair's first exchange pays for opening the connection and does not count.
        pings = [_send_and_ack(comm, peer, sending, PING_BYTES, clock) for _ in range(PINGS + 1)][1:]
        medians = [numbers[0] for numbers in _agree(comm, [median(pings)])]
        there_and_back |= {(source, dest): medians[source] for source, dest in directed}
        rate |= _grow(comm, directed, budget_s / 4, clock)
    found = {}
    for source, dest in there_and_back:
        both_ways_s = (there_and_back[source, dest] + there_and_back[dest, source]) / 2
        bytes_s = (PING_BYTES + SIZE_BYTES) * (1 / rate[source, dest] + 1 / rate[dest, source])
        found[source, dest] = max(both_ways_s - bytes_s, 0.0) / (2 * EXCHANGE_ROUNDS), rate[source, dest]
    return found


def _grow(
    comm: Comm, directed: list[tuple[int, int]], limit_s: float, clock: Callable[[], float]
) -> dict[tuple[int, int], float]:
    """Send ever larger messages from each pair's source until they take long enough; return bytes a second.

    The rate is that of the bytes by which a message exceeds a quarter of it: what every message costs cancels out,
    and so does what a shaped link lets through at once.
    """
    pair = next((pair for pair in directed if comm.rank in pair), None)
    sending = pair is not None and pair[0] == comm.rank
    nbytes = dict.fromkeys(directed, FIRST_BYTES)
    rate: dict[tuple[int, int], float] = {}
    began = clock()
    while nbytes:
        mine = nbytes.get(pair) if pair is not None else None
        peer = pair[sending] if pair is not None and mine is not None else None
        # The shorter of two, because a disturbance only ever adds time.
        taken_s = [_send_and_ack(comm, peer, sending, max(1, (mine or 1) // part), clock) for part in (1, 4, 1, 4)]
        seconds = _agree(comm, [min(taken_s[0::2]), min(taken_s[1::2]), clock() - began])
        for (source, dest), sent in list(nbytes.items()):
            whole_s, quarter_s, _ = seconds[source]
            # Below a thousandth of the whole the difference is noise of a link too fast or far to tell.
            rate[source, dest] = (sent - sent // 4) / max(whole_s - quarter_s, whole_s / 1000, 1e-9)
            own_s = sent / rate[source, dest]
            if own_s >= ENOUGH_S or seconds[0][2] >= limit_s or sent >= LARGEST_BYTES:
                del nbytes[source, dest]
            else:
                nbytes[source, dest] = min(LARGEST_BYTES, int(sent * min(GROWTH, max(2.0, 1.2 * ENOUGH_S / own_s))))
    return rate


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
