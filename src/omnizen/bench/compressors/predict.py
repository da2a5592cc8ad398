"""A step's time for any bandwidth, from the measured parts, and where a scheme stops to pay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from omnizen.bench.compressors.measure import UnitParts
from omnizen.plan.links import LinkModel
from omnizen.plan.timeline import Transfer, exposed_s

PAYLOAD_SHARE = 0.95
"""Of a link's rate, what headers leave."""
LATENCY_S = 3e-4
"""A round on an ordinary switched network, as measured in the lab."""
SEARCHED_BITS_PER_S = (1e5, 1e13)


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step at one bandwidth.

    Args:
        step_s: computing, the processor's parts, and the part of the wire that backward does not hide.
        wire_s: all of the wire.
        exposed_s: what is left of the wire and of the processor's parts when backward ends.
    """

    step_s: float
    wire_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class Computing:
    """Forward and backward of one rank, seconds."""

    forward_s: float
    backward_s: float


def step_time(units: Sequence[UnitParts], computing: Computing, bits_per_s: float, size: int) -> StepTime:
    """Predict a step.

    Units go on one wire in their order. Dense ones become ready as backward gets through their share of the bytes,
    tables when it ends; the processor's parts are never hidden (``plan.timeline``).

    Args:
        bits_per_s: rate of each link, both ways.
        size: ranks.
    """
    links = LinkModel.uniform(size, PAYLOAD_SHARE * bits_per_s / 8, LATENCY_S)
    total = sum(unit.nbytes for unit in units if not unit.late)
    done, transfers = 0, []
    for unit in units:
        done += 0 if unit.late else unit.nbytes
        ready_s = computing.backward_s if unit.late or not total else computing.backward_s * done / total
        wire_s = unit.traffic.serial_bytes / links.spread_bytes_per_s + unit.traffic.rounds * links.latency_s
        transfers.append(Transfer(ready_s, wire_s, unit.cpu_s))
    exposed = exposed_s(transfers, computing.backward_s)
    return StepTime(computing.forward_s + computing.backward_s + exposed, sum(t.wire_s for t in transfers), exposed)


def break_even_bits_per_s(
    scheme: Sequence[UnitParts], dense: Sequence[UnitParts], computing: Computing, size: int
) -> float:
    """Return the bandwidth up to which a scheme is faster than dense: infinite if always, 0 if never."""

    def gain_s(bits_per_s: float) -> float:
        ours, theirs = (step_time(units, computing, bits_per_s, size).step_s for units in (scheme, dense))
        return theirs - ours

    low, high = SEARCHED_BITS_PER_S
    if gain_s(low) <= 0:
        return 0.0
    if gain_s(high) > 0:
        return math.inf
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gain_s(middle) > 0 else (low, middle)
    return low
