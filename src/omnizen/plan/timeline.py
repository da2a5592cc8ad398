"""How much of the communication a step waits for: one wire, first ready first served.

The model, stated whole: backward takes ``backward_s`` and ends with the step's compute. Dense buckets become ready
when their last gradient was seen to; where that was not measured, evenly over backward, in reverse order of the
parameters and by their share of the bytes. Sparse gradients of embeddings,
which sit at the input, become ready at its end. One wire takes transfers in the order in which they become ready;
what it still has to do when backward ends is exposed. Merging is charged to the processor that computes, so it is
never hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transfer:
    """One reduction on the wire.

    Args:
        ready_s: when it may start, in seconds after backward began.
        wire_s: seconds that it holds the wire, latency included.
        cpu_s: seconds of merging.
    """

    ready_s: float
    wire_s: float
    cpu_s: float = 0.0


def exposed_s(transfers: Sequence[Transfer], backward_s: float) -> float:
    """Return the seconds of communication that are left when backward has ended, with all merging.

    Example:
        >>> exposed_s([Transfer(ready_s=0.5, wire_s=2.0)], backward_s=1.0)
        1.5
    """
    free_s = 0.0
    for transfer in sorted(transfers, key=lambda t: t.ready_s):
        free_s = max(free_s, transfer.ready_s) + transfer.wire_s
    return max(0.0, free_s - backward_s) + sum(t.cpu_s for t in transfers)


def fill_buckets(nbytes: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    """Group tensors, last first, into buckets that close when they hold ``bucket_bytes`` or more, as training does.

    Returns:
        Indices of the tensors in each bucket.
    """
    buckets: list[list[int]] = []
    filled = bucket_bytes
    for i in reversed(range(len(nbytes))):
        if filled >= bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += nbytes[i]
    return buckets
