"""What lossy schemes ask of a processor: elements looked through, elements quantised, passes over memory.

Counted from what the schemes do, in units whose rates are measured on each device: looking through an element as
exact top-k does, quantising or reading one as QSGD does, and copying bytes. A vote, a sketch and probabilities have
other inner loops; theirs count as so many of those units, roughly.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passes:
    """Work by element of the tensor.

    Args:
        selected: times that an element is looked through.
        quantised: times that one is quantised or read.
        quantised_by_rank: the same for each rank.
        copied: times that its bytes are copied or added: what was not sent before, sums, copies.
        copied_by_rank: the same for each rank.
    """

    selected: float = 0.0
    quantised: float = 0.0
    quantised_by_rank: float = 0.0
    copied: float = 4.0
    copied_by_rank: float = 0.0


_SELECTING = Passes(selected=1.0)
_QUANTISING = Passes(quantised=1.0, quantised_by_rank=1.0, copied=2.0, copied_by_rank=1.0)
"""One's own is packed, and everybody's is read and added."""

PASSES: dict[str, Passes] = {
    "topk": _SELECTING,
    "ok-topk": _SELECTING,
    "hitopkcomm": _SELECTING,
    "dgc": Passes(selected=1.0, copied=8.0),
    "sbc": Passes(selected=2.0, copied=8.0),
    "stc": Passes(selected=1.5),
    "wangni": Passes(selected=3.0),
    "randomk": Passes(),
    "random-block": Passes(),
    "def-random-block": Passes(copied=8.0),
    "onebit": _QUANTISING,
    "qsgd": _QUANTISING,
    "terngrad": _QUANTISING,
    "natural": _QUANTISING,
    "signsgd": Passes(quantised=1.5),
    "shared-scale": Passes(quantised=2.0),
    "count-sketch": Passes(selected=1.0, quantised=10.0),
    "powersgd": Passes(copied=8.0),
}
"""By scheme name. A scheme that is not here is charged with merging what it receives."""
