"""The magnitude that a given fraction exceeds, from moments alone, for three kinds of tails."""

from __future__ import annotations

import math

import torch

from omnizen.kernels.magnitudes import Moments

ALIKE = 1e-12
"""Relative spread below which all magnitudes count as equal."""


def exponential(some: Moments, above: float, fraction: float) -> float:
    """Return ``above - (mean - above) ln fraction``.

    Args:
        some: moments of the magnitudes from ``above`` on.
        above: where the tail begins.
        fraction: of these magnitudes that is to exceed the result, in (0, 1].

    Example:
        >>> round(exponential(Moments(100, 3.0, 4.0, 0.0), 1.0, 0.5), 3)
        2.386
    """
    return above - (some.mean - above) * math.log(fraction)


def pareto(some: Moments, above: float, fraction: float) -> float:
    """Return the quantile of a generalised Pareto tail with these moments (arguments as for ``exponential``).

    Shape and scale come from mean m and variance s of what exceeds: ``k = (m^2 / s - 1) / 2``,
    ``a = m (m^2 / s + 1) / 2``, quantile ``a (1 - fraction^k) / k``.
    """
    mean = some.mean - above
    if not ALIKE * mean * mean < some.variance < math.inf:
        return some.mean
    ratio = mean * mean / some.variance
    shape, scale = (ratio - 1) / 2, mean * (ratio + 1) / 2
    if abs(shape) < 1e-9:  # the exponential tail
        return exponential(some, above, fraction)
    return above - scale * math.expm1(shape * math.log(fraction)) / shape


def gamma(some: Moments, fraction: float) -> float:
    """Return the quantile of a gamma distribution of all magnitudes, by its mean and its mean logarithm.

    Shape ``(3 - s + sqrt((s - 3)^2 + 24 s)) / (12 s)`` with ``s = ln mean - mean ln`` (Minka, "Estimating a Gamma
    distribution", 2002), scale mean / shape.
    """
    s = math.log(some.mean) - some.mean_log
    if s <= ALIKE:
        return some.mean
    shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    return some.mean / shape * _gamma_quantile(shape, fraction)


def _gamma_quantile(shape: float, fraction: float) -> float:
    """Return x of which ``fraction`` of a gamma distribution of scale 1 is beyond."""
    alpha = torch.tensor(shape, dtype=torch.float64)

    def beyond(x: float) -> float:
        return float(torch.special.gammaincc(alpha, torch.tensor(x, dtype=torch.float64)))

    low, high = 0.0, max(1.0, shape)
    while beyond(high) > fraction:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > fraction else (low, middle)
    return high
