"""What lossy schemes ask of a processor: elements looked through, elements quantised, passes over memory.

In units whose rates are measured on each device: looking through an element as exact top-k does, quantising or
reading one as QSGD does, and copying its bytes. How many of each a scheme takes was fitted to what its reductions
took of one core (``omnizen bench compressors``, 8 ranks, 0.4 M elements in small tensors): fresh memory, error
feedback and calls for each tensor cost far more passes than the arithmetic alone. Good for telling schemes apart
whose prices differ several times, not for some percent.
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
        copied: passes over its bytes: what was not sent before, sums, copies.
    """

    selected: float = 0.0
    quantised: float = 0.0
    quantised_by_rank: float = 0.0
    copied: float = 0.0


_SELECTING = Passes(selected=1.0, copied=32.0)
_QUANTISING = Passes(quantised=2.0, quantised_by_rank=2.5, copied=4.0)
"""One's own is packed, and everybody's is read and added."""

PASSES: dict[str, Passes] = {
    "topk": _SELECTING,
    "ok-topk": Passes(selected=1.0, copied=48.0),
    "hitopkcomm": Passes(selected=1.0, copied=12.0),
    "dgc": Passes(selected=1.0, copied=44.0),
    "sbc": Passes(selected=2.0, quantised=10.0, copied=44.0),
    "stc": Passes(selected=2.0, quantised=25.0, copied=32.0),
    "wangni": Passes(selected=3.0, quantised=18.0, copied=32.0),
    "randomk": Passes(copied=32.0),
    "random-block": Passes(copied=32.0),
    "def-random-block": Passes(copied=40.0),
    "onebit": _QUANTISING,
    "qsgd": _QUANTISING,
    "terngrad": _QUANTISING,
    "natural": _QUANTISING,
    "signsgd": Passes(quantised=2.0, copied=12.0),
    "shared-scale": Passes(quantised=5.0, copied=32.0),
    "count-sketch": Passes(selected=1.0, quantised=18.0, copied=32.0),
    "powersgd": Passes(copied=40.0),
}
"""By scheme name. A scheme that is not here is charged with merging what it receives."""
