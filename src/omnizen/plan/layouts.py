"""Who works with whom on how much: ranks in groups, and each one's samples of a group's batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from omnizen.errors import UserError


@dataclass(frozen=True, slots=True)
class Layout:
    """Groups of ranks that share one batch each.

    Args:
        groups: the ranks of each group; each rank is in one.
        samples: by rank, how many samples of its group's batch it works on, at least 1.

    Raises:
        UserError: a rank is missing or there twice, a group is empty, or a rank has no sample.

    Example:
        >>> Layout(((0, 1), (2,)), (16, 16, 32)).group_of(2)
        1
    """

    groups: tuple[tuple[int, ...], ...]
    samples: tuple[int, ...]

    def __post_init__(self) -> None:
        ranks = sorted(rank for group in self.groups for rank in group)
        if ranks != list(range(len(self.samples))) or not ranks or not all(self.groups):
            raise UserError(
                f"each of {len(self.samples)} ranks must be in one group, and no group empty; got {self.groups}"
            )
        if min(self.samples) < 1:
            raise UserError(f"each rank needs a sample or more, got {self.samples}")

    @property
    def size(self) -> int:
        """Ranks."""
        return len(self.samples)

    def group_of(self, rank: int) -> int:
        """Return the number of a rank's group."""
        return next(number for number, group in enumerate(self.groups) if rank in group)


def even(size: int, groups: int, batch: int) -> Layout:
    """Make groups of equally many ranks in order, with equal shares.

    Args:
        size: ranks, a multiple of ``groups``.
        batch: samples of each group's batch.

    Raises:
        UserError: the ranks cannot be divided so, or the batch is smaller than a group.

    Example:
        >>> even(4, 2, 32)
        Layout(groups=((0, 1), (2, 3)), samples=(16, 16, 16, 16))
    """
    if groups < 1 or size % groups:
        raise UserError(f"{size} ranks cannot be divided into {groups} groups of equally many")
    each = size // groups
    members = tuple(tuple(range(g * each, (g + 1) * each)) for g in range(groups))
    return _shared(members, [1.0] * size, batch)


def by_speed(speeds: Sequence[float], groups: int, batch: int) -> Layout:
    """Make groups of nearly equal speed, and share each one's batch by speed.

    The fastest ranks are placed first, each into the slowest group so far.

    Args:
        speeds: samples a second by rank.
        batch: samples of each group's batch.

    Raises:
        UserError: more groups than ranks, a speed that is not above 0, or a batch smaller than a group.

    Example:
        >>> by_speed([3.0, 3.0, 3.0, 1.0], 2, 60)
        Layout(groups=((0, 2), (1, 3)), samples=(30, 45, 30, 15))
    """
    if not 1 <= groups <= len(speeds):
        raise UserError(f"{len(speeds)} ranks make 1 to {len(speeds)} groups, not {groups}")
    if not all(math.isfinite(s) and s > 0 for s in speeds):
        raise UserError(f"speeds must be above 0, got {list(speeds)}")
    members: list[list[int]] = [[] for _ in range(groups)]
    for rank in sorted(range(len(speeds)), key=lambda r: -speeds[r]):
        min(members, key=lambda m: sum(speeds[r] for r in m)).append(rank)
    return _shared(tuple(tuple(sorted(m)) for m in members), speeds, batch)


def sizes(size: int) -> tuple[int, ...]:
    """Return the numbers of groups worth a try, from 1 up: halves of the ranks as long as they divide evenly.

    Example:
        >>> sizes(8), sizes(6), sizes(7)
        ((1, 2, 4, 8), (1, 3, 6), (1, 7))
    """
    found = {1, size}
    groups = size
    while groups % 2 == 0:
        groups //= 2
        found.add(groups)
    return tuple(sorted(found))


def _shared(groups: tuple[tuple[int, ...], ...], speeds: Sequence[float], batch: int) -> Layout:
    samples = [0] * len(speeds)
    for group in groups:
        if batch < len(group):
            raise UserError(f"a batch of {batch} cannot be shared by {len(group)} ranks; take {len(group)} or more")
        total = sum(speeds[r] for r in group)
        exact = {r: batch * speeds[r] / total for r in group}
        for r in group:
            samples[r] = max(1, int(exact[r]))
        # What rounding left over goes to those who lost most; what a least share of 1 took comes from the largest.
        while (left := batch - sum(samples[r] for r in group)) > 0:
            for r in sorted(group, key=lambda r: samples[r] - exact[r])[:left]:
                samples[r] += 1
        while sum(samples[r] for r in group) > batch:
            samples[max(group, key=lambda r: samples[r])] -= 1
    return Layout(groups, tuple(samples))
