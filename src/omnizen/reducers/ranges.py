"""Equal ranges of rows, and how many rows fall into each: what schemes need that give each rank a range."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from omnizen.types import Sparsity

PROFILE_RANGES = 64
"""Ranges of a measured profile."""


def bounds(num_rows: int, parts: int) -> list[int]:
    """Return where each of some equal ranges begins, and the end of the last.

    Example:
        >>> bounds(10, 4)
        [0, 3, 5, 8, 10]
    """
    return [-(-num_rows * part // parts) for part in range(parts + 1)]


def range_of(rows: Tensor, num_rows: int, parts: int) -> Tensor:
    """Return the range that each row is in, ``[k]`` int64."""
    ends = torch.tensor(bounds(num_rows, parts)[1:], dtype=torch.int64, device=rows.device)
    return torch.searchsorted(ends, rows, right=True)


def profile(rows: Tensor, num_rows: int, parts: int = PROFILE_RANGES) -> Tensor:
    """Return how many of some ascending rows (``[k]``) are in each of some equal ranges, ``[parts]`` int64."""
    marks = torch.tensor(bounds(num_rows, parts), dtype=torch.int64, device=rows.device)
    return torch.searchsorted(rows, marks).diff()


def rows_by_range(pattern: Sparsity, parts: int, size: int) -> tuple[list[float], list[float]]:
    """Return the rows that one worker has, and that any of ``size`` workers has, in each of some equal ranges.

    From the measured profiles, evenly within each of their ranges; without them from the skewness alone: one range
    is that hot, the others are alike.

    Example:
        >>> rows_by_range(Sparsity(100, 1, 0.4, own_profile=(30.0, 10.0), union_profile=(50.0, 20.0)), 4, 1)[0]
        [15.0, 15.0, 5.0, 5.0]
    """
    own, union = pattern.rows, pattern.union_rows(size)
    if pattern.own_profile and pattern.union_profile:
        return _spread(pattern.own_profile, parts, own), _spread(pattern.union_profile, parts, union)
    wide = pattern.num_rows / parts
    hot = min(pattern.skewness * own / parts, own, wide)
    # Workers draw the hot range's rows as if independently, as far as the size of the union leaves room.
    hot_union = min(wide * (1 - (1 - hot / wide) ** size), union) if wide else 0.0
    hot_union = max(hot_union, union / parts)
    return _one_hot(hot, own, parts), _one_hot(hot_union, union, parts)


def _one_hot(hot: float, total: float, parts: int) -> list[float]:
    return [hot] + [(total - hot) / (parts - 1)] * (parts - 1) if parts > 1 else [total]


def _spread(profile: tuple[float, ...], parts: int, total: float) -> list[float]:
    """Divide a profile's rows anew, scaled to a total."""
    cells = len(profile)
    running = [0.0]
    for rows in profile:
        running.append(running[-1] + rows)

    def below(place: float) -> float:
        cell = min(int(place), cells - 1)
        return running[cell] + (place - cell) * profile[cell]

    marks = [below(cells * part / parts) for part in range(parts + 1)]
    scale = total / running[-1] if running[-1] else 0.0
    return [(high - low) * scale for low, high in itertools.pairwise(marks)]
