"""Who is still there, as far as this rank knows; what one rank knows travels with every message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor


class Members:
    """The ranks, in their groups; a rank that was taken for lost stays lost.

    Args:
        groups: ranks of each group; together all ranks, each once.
        gone: returns the ranks that the mailbox knows to be gone.
    """

    def __init__(self, groups: Sequence[Sequence[int]], gone: Callable[[], frozenset[int]] = frozenset) -> None:
        self._gone = gone
        self.regroup(groups)
        self.size = sum(map(len, self.groups))
        self._lost: set[int] = set()
        self._lock = threading.Lock()

    def regroup(self, groups: Sequence[Sequence[int]]) -> None:
        """Put the same ranks into other groups; between two meetings, while nobody contributes or draws."""
        self.groups = [list(group) for group in groups]
        self._group_of = {rank: number for number, group in enumerate(self.groups) for rank in group}

    @property
    def lost(self) -> frozenset[int]:
        """Ranks that are gone."""
        with self._lock:
            return self._gone().union(self._lost)

    def lose(self, ranks: Iterable[int]) -> bool:
        """Note that ranks are gone; returns whether that is news."""
        with self._lock:
            before = len(self._lost)
            self._lost.update(ranks)
            return len(self._lost) > before

    def flags(self) -> Tensor:
        """Return what this rank knows, to travel with a message."""
        flags = torch.zeros(self.size, dtype=torch.uint8)
        flags[sorted(self.lost)] = 1
        return flags

    def hear(self, flags: Tensor) -> None:
        """Learn what another rank knows."""
        self.lose(flags.nonzero().view(-1).tolist())

    def group_of(self, rank: int) -> int:
        """Return the number of a rank's group."""
        return self._group_of[rank]

    def is_whole(self, group: int) -> bool:
        """Return whether a group still has all its members; without one it cannot go on."""
        return self.lost.isdisjoint(self.groups[group])

    def working(self) -> list[int]:
        """Return the ranks whose groups are whole."""
        return sorted(rank for number, group in enumerate(self.groups) if self.is_whole(number) for rank in group)

    def next_from(self, rank: int) -> int:
        """Return the first rank that is there, counting from one on, in a circle.

        Example:
            >>> members = Members([[0, 1], [2]]); _ = members.lose([1, 2]); members.next_from(1)
            0
        """
        lost = self.lost
        return next(r for i in range(self.size) if (r := (rank + i) % self.size) not in lost)
