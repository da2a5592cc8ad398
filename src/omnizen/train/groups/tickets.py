"""Who reads which samples of an epoch: each group draws its next batch when it is ready for one."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from omnizen.errors import UserError

Range = tuple[int, int, int]
"""Samples of one epoch's order: epoch, begin, end."""


class TicketBook:
    """Hands out an epoch's samples, so that fast groups read more, and none is lost or read twice.

    A batch that was drawn is confirmed when its group draws again after its step. Those of a group that died are
    handed out again: in their epoch, or in the next one where nobody is in theirs any more.

    Args:
        sizes: ranks of each group; a batch has at least one sample for each.
        samples: of an epoch.
        drop_last: whether a rest that is smaller than a batch is left out.

    Example:
        >>> book = TicketBook([1, 1], samples=5, drop_last=False)
        >>> book.draw(0, 0, group=0, wanted=2), book.draw(0, 0, group=1, wanted=2)
        ([(0, 0, 2)], [(0, 2, 4)])
        >>> book.draw(0, 1, group=1, wanted=2)
        [(0, 4, 5)]
    """

    def __init__(self, sizes: Sequence[int], *, samples: int, drop_last: bool) -> None:
        self.sizes, self.samples, self.drop_last = list(sizes), samples, drop_last
        if samples < max(sizes):
            raise UserError(f"{samples} samples cannot be shared by a group of {max(sizes)} ranks")
        self._free: dict[int, list[Range]] = {}
        self._out: dict[int, dict[tuple[int, int], list[Range]]] = {group: {} for group in range(len(sizes))}
        self._at: dict[int, int] = dict.fromkeys(range(len(sizes)), 0)
        self._confirmed: dict[int, tuple[int, int]] = dict.fromkeys(range(len(sizes)), (0, 0))
        self._gone: set[int] = set()
        self._returned: list[Range] = []
        self._lock = threading.Lock()

    def draw(self, epoch: int, sequence: int, *, group: int, wanted: int, confirmed: int = 0) -> list[Range]:
        """Return a batch's samples; none when the epoch has no more for this group.

        Each member of a group draws for itself and gets the same.

        Args:
            sequence: number of the batch in this group's epoch.
            wanted: samples of a whole batch of the group.
            confirmed: batches of the epoch whose steps the group has done.
        """
        with self._lock:
            self._at[group] = max(self._at[group], epoch)
            self._confirmed[group] = max(self._confirmed[group], (epoch, confirmed))
            out = self._out[group]
            for key in [key for key in out if key < (epoch, confirmed - 1)]:
                del out[key]  # one more is kept: members of a group are not at the same line
            if (epoch, sequence) not in out:
                out[epoch, sequence] = self._take(epoch, group, wanted)
            return out[epoch, sequence]

    def lose(self, group: int) -> None:
        """Let others have what a group drew and did not confirm; no harm in saying so again."""
        with self._lock:
            if group not in self._gone:
                self._gone.add(group)
                unread = [
                    r for key, found in self._out[group].items() if key >= self._confirmed[group] for r in found
                ]
                self._give_back(unread)
                self._out[group].clear()

    def leave_out(self, drawn: Sequence[Range]) -> None:
        """Take over from a host that was lost: in the epochs of what was drawn, only the rest is left."""
        with self._lock:
            for epoch in {each[0] for each in drawn}:
                self._free[epoch] = rest_of(drawn, epoch, self.samples)

    def free(self, epoch: int) -> list[Range]:
        """Return what nobody has drawn yet, for a checkpoint."""
        with self._lock:
            return list(self._of(epoch)) + self._returned

    def restore(self, epoch: int, free: Sequence[Range]) -> None:
        """Go on where so much of an epoch was not drawn yet."""
        with self._lock:
            self._free = {epoch: [(e, a, b) for e, a, b in free]}
            self._returned.clear()
            for group, out in self._out.items():
                out.clear()
                self._at[group] = epoch

    def _of(self, epoch: int) -> list[Range]:
        if epoch not in self._free:
            self._free[epoch] = [*self._returned, (epoch, 0, self.samples)]
            self._returned.clear()
        return self._free[epoch]

    def _take(self, epoch: int, group: int, wanted: int) -> list[Range]:
        free = self._of(epoch)
        left = sum(end - begin for _, begin, end in free)
        least = max(size for number, size in enumerate(self.sizes) if number not in self._gone)
        if not left or left < self.sizes[group] or (self.drop_last and left < wanted):
            return []
        count = min(wanted, left)
        if 0 < left - count < least and not self.drop_last:  # leave none, or one for each rank of any group
            count = left - least if left - least >= self.sizes[group] else left
        taken: list[Range] = []
        while count:
            at, begin, end = free.pop(0)
            cut = min(end, begin + count)
            taken.append((at, begin, cut))
            count -= cut - begin
            if cut < end:
                free.insert(0, (at, cut, end))
        return taken

    def _give_back(self, ranges: list[Range]) -> None:
        working = [self._at[group] for group in self._out if group not in self._gone]
        newest = max(working, default=0)
        if self._free.get(newest):
            self._free[newest][:0] = ranges
        else:
            self._returned += ranges


def rest_of(ranges: Sequence[Range], epoch: int, samples: int) -> list[Range]:
    """Return the samples of an epoch that are in none of the ranges.

    Example:
        >>> rest_of([(0, 3, 5), (0, 0, 2)], 0, 6)
        [(0, 2, 3), (0, 5, 6)]
    """
    found, at = [], 0
    for _, begin, end in sorted({each for each in ranges if each[0] == epoch}):
        if begin > at:
            found.append((epoch, at, begin))
        at = max(at, end)
    return [*found, (epoch, at, samples)] if at < samples else found
