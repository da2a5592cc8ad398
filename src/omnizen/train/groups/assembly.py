"""Where all ranks meet: who has come, until the last one that still works has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from omnizen.errors import Disagreement
from omnizen.train.groups.members import Members

PATIENCE_S = 1.0
"""A rank that waits is answered "not yet" after so long, so that a long wait is many short ones."""


class Assembly:
    """Meetings, one after another, at the rank that hosts them.

    A rank that came to a later meeting was at all before it, so a new host need only be told where each rank is.

    Args:
        members: who must come: the ranks of groups that are whole.
        limit_s: how long a rank may be silent before it is taken for lost.
        clock: seconds since some fixed point; tests pass one of their own.
    """

    def __init__(self, members: Members, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._members, self._limit_s, self._clock = members, limit_s, clock
        self._came: dict[int, tuple[int, str]] = {}
        self._told: dict[int, int] = {}
        self._brought: dict[int, dict[int, Tensor]] = {}
        self._sums: dict[int, Tensor] = {}
        self._began_s: dict[int, float] = {}
        self._heard_s: dict[int, float] = {}
        self._changed = threading.Condition()

    def heard(self, rank: int) -> None:
        """Note a sign of life of a rank, and so of its group."""
        self._heard_s[self._members.group_of(rank)] = self._clock()

    def regrouped(self) -> None:
        """Forget which groups gave signs of life: they are others now."""
        self._heard_s.clear()

    def arrive(self, rank: int, number: int, label: str, brought: Tensor) -> Tensor | None:
        """Come to a meeting, as often as it takes.

        Args:
            number: of the meeting, from 0.
            label: what it is for.
            brought: numbers of which all will hear the sum; empty ones bring nothing.

        Returns:
            The sum once all are there, None while some are missing.

        Raises:
            Disagreement: others came for something else.
        """
        with self._changed:
            self._came[rank] = number, label
            self._brought.setdefault(number, {}).setdefault(rank, brought)
            for kept in (self._brought, self._sums, self._began_s):
                kept.pop(number - 2, None)
            self._changed.notify_all()
            began_s = self._clock()
            self._began_s.setdefault(number, began_s)
            while not self._complete(number, label):
                self._lose_silent(number)
                left_s = min(PATIENCE_S, self._limit_s / 4) - (self._clock() - began_s)
                if left_s <= 0:
                    return None
                self._changed.wait(min(left_s, 0.1))
            self._told[rank] = max(number, self._told.get(rank, -1))
            self._changed.notify_all()
            if number not in self._sums:
                found = [x for _, x in sorted(self._brought[number].items()) if x.numel()]
                self._sums[number] = torch.stack(found).sum(0) if found else brought
            return self._sums[number]

    def all_told(self, number: int, limit_s: float) -> None:
        """Wait until all who work have heard that a meeting is complete: its host must not leave before."""
        with self._changed:
            self._changed.wait_for(
                lambda: all(self._told.get(rank, -1) >= number for rank in self._members.working()), limit_s
            )

    def changed(self) -> None:
        """Look again who is missing: somebody was lost."""
        with self._changed:
            self._changed.notify_all()

    def _complete(self, number: int, label: str) -> bool:
        here = True
        for rank in self._members.working():
            at, what = self._came.get(rank, (-1, ""))
            if at == number and what != label:
                raise Disagreement(
                    f"some ranks called {label}, rank {rank} called {what}: with compute groups all ranks must "
                    "flush, save and close in the same order"
                )
            here &= at >= number
        return here

    def _lose_silent(self, number: int) -> None:
        began_s = self._began_s[number]
        for rank in self._members.working():
            since_s = max(began_s, self._heard_s.get(self._members.group_of(rank), began_s))
            if self._came.get(rank, (-1, ""))[0] < number and self._clock() - since_s > self._limit_s:
                self._members.lose([rank])
