"""How much of each global batch a rank reads, and from which place in the data on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from omnizen.errors import OmnizenError
from omnizen.plan.apportion import apportion

Place = tuple[int, int]
"""A pass over the data and a step in it; places only grow."""

SPARE_STEPS = 2
"""How far beyond what any rank has drawn a change begins: a thread that reads ahead may draw during a backward."""


class Shares:
    """Batch sizes of all ranks, by place; the same on all ranks, so that no sample is lost or read twice.

    Args:
        sizes: of a whole global batch, by rank.
        moving: whether they may change, and so belong to a checkpoint.
    """

    def __init__(self, sizes: Sequence[int], *, moving: bool = False) -> None:
        self._changes: list[tuple[Place, tuple[int, ...]]] = [((0, 0), tuple(sizes))]
        self.moving = moving
        self.drawn: Place = (0, 0)
        """The first place of which this rank has drawn nothing yet."""

    def at(self, place: Place) -> tuple[int, ...]:
        """Return the sizes of a whole global batch there."""
        return next(sizes for since, sizes in reversed(self._changes) if since <= place)

    @property
    def latest(self) -> tuple[int, ...]:
        """The sizes of the batches that are drawn next."""
        return self.at(self.drawn)

    def parts(self, size: int, place: Place) -> tuple[int, ...]:
        """Return each rank's samples of a global batch of any size; everyone gets at least one."""
        sizes = self.at(place)
        return sizes if sum(sizes) == size else apportion(size, sizes)

    def draw(self, size: int, rank: int, place: Place) -> tuple[int, int]:
        """Return where a rank's part of ``size`` consecutive samples begins and ends; it is drawn now."""
        self.drawn = max(self.drawn, (place[0], place[1] + 1))
        ends = list(accumulate(self.parts(size, place), initial=0))
        return ends[rank], ends[rank + 1]

    def change(self, sizes: Sequence[int], drawn: Iterable[Place]) -> Place:
        """Let other sizes hold from a place of which no rank has drawn; the same call on all ranks.

        Args:
            drawn: of all ranks, as they were told.

        Raises:
            OmnizenError: this rank has drawn beyond that place meanwhile.
        """
        furthest = max(drawn)
        place = (furthest[0], furthest[1] + SPARE_STEPS)
        if self.drawn > place:
            raise OmnizenError(
                f"{self.drawn[1] - furthest[1]} batches were read from the loader during one backward pass, so "
                "batch sizes cannot change there any more; read ahead by the DataLoader's num_workers, no thread"
            )
        self._changes.append((place, tuple(sizes)))
        return place

    def state_dict(self, place: Place) -> list[list[int]]:
        """Return all that holds from a place on."""
        first = max(i for i, (since, _) in enumerate(self._changes) if since <= place)
        return [[*since, *sizes] for since, sizes in self._changes[first:]]

    def load_state_dict(self, state: Any, place: Place) -> None:
        """Take what was saved, at a place; sizes that do not move stay as they are."""
        self.drawn = place
        if self.moving:
            self._changes = [((row[0], row[1]), tuple(row[2:])) for row in state]
