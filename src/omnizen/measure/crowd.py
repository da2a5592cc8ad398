"""What links give when all ranks ask all others at once, as servers of compute groups are asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from omnizen.measure.facts import CrowdFacts
from omnizen.protocols import Comm, HasMailbox

ROUNDS = 6
SMALL_BYTES = 8


def measure_crowd(
    comm: Comm, nbytes: int, *, rounds: int = ROUNDS, clock: Callable[[], float] = time.perf_counter
) -> CrowdFacts | None:
    """Let each rank send all others a message and get as much back, again and again (collective).

    Nobody waits for anybody but those who answer, so that several messages meet at each link's ends. Ranks answer
    in threads beside their own work, as servers do.

    Args:
        nbytes: of a message.
        rounds: of each rank, after a first one.

    Returns:
        The slowest rank's seconds of a round; None where ranks cannot ask each other, or where there is one.
    """
    if comm.size == 1 or not isinstance(comm, HasMailbox):
        return None
    box = comm.mailbox("crowd")
    box.serve(lambda _, parts: parts)
    peers = [rank for rank in range(comm.size) if rank != comm.rank]

    def seconds(size: int) -> float:
        parts, taken = [torch.zeros(size, dtype=torch.uint8)], list[float]()
        comm.barrier()
        for _ in range(rounds + 1):
            began = clock()
            for asked in [box.ask(peer, parts) for peer in peers]:
                asked.wait()
            taken.append(clock() - began)
        mine = torch.tensor([sum(taken[1:]) / rounds, median(taken[1:])], dtype=torch.float64, device=comm.device)
        everyone = [part.tolist() for (part,) in comm.all_gather([mine]).wait()]
        return max(row[size == SMALL_BYTES] for row in everyone)

    empty_s = seconds(SMALL_BYTES)
    whole_s = seconds(max(SMALL_BYTES, nbytes))
    comm.barrier()
    box.close()
    return CrowdFacts(nbytes=max(SMALL_BYTES, nbytes), ask_s=empty_s, cycle_s=max(whole_s, empty_s))
