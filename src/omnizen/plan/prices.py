"""What a strategy costs in samples: from the losses of short runs beside those of plain synchronous training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from omnizen.measure.facts import PriceFacts
from omnizen.plan.plan import StrategyName

Curve = Sequence[tuple[float, float]]
"""(samples, loss) of each update, in order."""
Floats = npt.NDArray[np.float64]
BINS, LEAST_BINS = 20, 4
"""Losses are averaged over so many stretches of equally many samples of the shorter curve, or over larger ones."""
LEVELS = 5
"""Levels of the loss, in the lower half of what both curves span, at which samples are compared."""
LEAST_SHARE = 0.2
"""A curve that fell by less than this share of what the other one fell cannot be compared with it."""
NOISE = 2.0
"""A fall must be so many times as large as the scatter of the averages."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Samples to the same loss over those of plain synchronous training.

    Args:
        ratio: None where the two cannot be compared.
        at_least: what the ratio cannot be below, where only plain synchronous training came to the loss.
        reason: why there is no ratio, with numbers.
    """

    ratio: float | None
    at_least: float | None = None
    reason: str = ""


def compare(plain: Curve, other: Curve) -> Compared:
    """Compare two runs from the same weights by the samples at which they come to the same losses.

    Losses are averaged over equally many samples, made to fall (the closest falling curve in squared error), and
    read at levels down to the loss that the slower of both came to.

    Args:
        plain: of plain synchronous training.
        other: of the strategy whose price is asked for.

    Example:
        >>> curve = lambda pace: [(8, math.exp(-step * 8 / pace)) for step in range(200)]
        >>> round(compare(curve(500.0), curve(1000.0)).ratio, 2)
        2.0
    """
    for name, curve in (("plain synchronous training", plain), ("the strategy", other)):
        if not all(math.isfinite(loss) for _, loss in curve):
            return Compared(None, reason=f"diverged: the loss of {name} was no number")
    shortest = min(math.fsum(n for n, _ in plain), math.fsum(n for n, _ in other))
    largest = max((n for n, _ in (*plain, *other)), default=1.0)
    width = max(shortest / BINS, 2 * largest)
    if shortest < LEAST_BINS * width:
        counts = f"{len(plain)} and {len(other)} updates"
        return Compared(None, reason=f"too few updates to compare: {counts}")
    (at, loss, noise), (other_at, other_loss, other_noise) = _falling(plain, width), _falling(other, width)
    top, bottom = min(loss[0], other_loss[0]), max(loss[-1], other_loss[-1])
    scatter = NOISE * math.hypot(noise, other_noise)
    fell, other_fell = float(loss[0] - loss[-1]), float(other_loss[0] - other_loss[-1])
    numbers = f"{loss[0]:.4g} to {loss[-1]:.4g} beside {other_loss[0]:.4g} to {other_loss[-1]:.4g}"
    if fell <= scatter:
        return Compared(None, reason=f"plain synchronous training learnt too little to compare: {numbers}")
    if top - bottom <= max(LEAST_SHARE * fell, scatter):
        reached = float(np.interp(bottom, loss[::-1], at[::-1]))
        least = other_at[-1] / reached if other_fell < fell else None
        return Compared(None, least, f"never came to the loss of plain synchronous training: {numbers}")
    levels = np.linspace((top + bottom) / 2, bottom, LEVELS)
    ratios = np.interp(levels, other_loss[::-1], other_at[::-1]) / np.interp(levels, loss[::-1], at[::-1])
    return Compared(float(np.median(ratios)))


def _falling(curve: Curve, width: float) -> tuple[Floats, Floats, float]:
    """Return samples and losses of the closest falling curve, and the scatter of one average.

    Args:
        width: samples of each average.
    """
    samples, losses = np.array(curve, dtype=np.float64).T
    centres = np.cumsum(samples) - samples / 2
    number = (centres / width).astype(np.int64)
    if len(number) > 1 and centres[-1] + samples[-1] / 2 < (number[-1] + 0.5) * width:
        number[number == number[-1]] -= 1  # less than half an average's samples are no average of their own
    blocks: list[tuple[float, float, float]] = []
    within = []
    for each in np.unique(number):
        these = number == each
        weight = float(samples[these].sum())
        mean = float(np.average(losses[these], weights=samples[these]))
        if these.sum() > 1:
            within.append(float(losses[these].var(ddof=1) / these.sum()))
        blocks.append((weight, float(np.average(centres[these], weights=samples[these])), mean))
        while len(blocks) > 1 and blocks[-2][2] <= blocks[-1][2]:
            (w, x, y), (v, z, u) = blocks[-2:]
            blocks[-2:] = [(w + v, (w * x + v * z) / (w + v), (w * y + v * u) / (w + v))]
    _, at, loss = np.array(blocks).T
    return at, loss, math.sqrt(median(within)) if within else 0.0


def price(
    strategy: StrategyName,
    compared: Sequence[Compared],
    *,
    groups: int = 1,
    local_steps: float = 1.0,
    momentum: float | None = None,
    lr: float | None = None,
) -> PriceFacts | str:
    """Return a price from several comparisons, or why there is none.

    A strategy that did not come to the loss in one of them has none: it would be a lower bound.

    Args:
        compared: one for each repetition.
        groups: of workers.
        local_steps: mean over workers.
        momentum: at which they were made.
        lr: the step size.
    """
    failed = next((c for c in compared if c.ratio is None), None)
    if failed is not None:
        least = f", so it costs at least {failed.at_least:.3g}" if failed.at_least else ""
        return failed.reason + least
    if not compared:
        return "not probed"
    low, middle, high = np.percentile([c.ratio for c in compared if c.ratio is not None], [20, 50, 80])
    return PriceFacts(
        strategy=strategy,
        groups=groups,
        local_steps=local_steps,
        samples=float(middle),
        low=float(min(low, middle)),
        high=float(max(high, middle)),
        momentum=momentum,
        lr=lr,
        probes=len(compared),
    )
