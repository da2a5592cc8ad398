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
    handed out again: in their epoch, or in the next one where nobody is in theirs any more. What a group was in the
    middle of when it died may be read twice, as nobody knows whether its step still counted.

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
        self.samples, self.drop_last = samples, drop_last
        self._free: dict[int, list[Range]] = {}
        self._begin(sizes, 0, -1)
        self._gone: set[int] = set()
        self._read: list[Range] = []
        self._short: set[int] = set()
        """Epochs that ended for a group although samples are left: too few for it."""
        self._returned: list[Range] = []
        self._lock = threading.Lock()

    def _begin(self, sizes: Sequence[int], epoch: int, ended: int) -> None:
        check_sizes(sizes, self.samples)
        self.sizes = list(sizes)
        self._out: dict[int, dict[tuple[int, int], list[Range]]] = {group: {} for group in range(len(sizes))}
        self._at = dict.fromkeys(range(len(sizes)), epoch)
        self._confirmed = dict.fromkeys(range(len(sizes)), (epoch, 0))
        self._ended = dict.fromkeys(range(len(sizes)), ended)
        """Last epoch of which each group was told that it has no more."""
        self._counted = dict.fromkeys(range(len(sizes)), (epoch, 0))
        """Up to where what each group confirmed is among the samples that were read."""

    def regroup(self, sizes: Sequence[int], epoch: int, read: Sequence[int], *, over: bool) -> None:
        """Go on with other groups; none of those before was lost.

        Args:
            sizes: ranks of each new group.
            epoch: that all groups are in, or were in last.
            read: batches of it that each old group has handed out; what it drew beyond is drawn anew.
            over: whether it has ended for all groups.
        """
        with self._lock:
            drawn = [(key, group, found) for group, out in self._out.items() for key, found in out.items()]
            unread = [each for key, group, found in drawn if key >= (epoch, read[group]) for each in found]
            done = [each for key, group, found in drawn if key < (epoch, read[group]) for each in found]
            self._read = merged([*self._read, *done])
            self._of(epoch)[:0] = unread
            self._begin(sizes, epoch, epoch if over else epoch - 1)
            self._hand_on()

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
            self._count(group)
            out = self._out[group]
            for key in [key for key in out if key < (epoch, confirmed - 1)]:
                del out[key]  # one more is kept: members of a group are not at the same line
            if (epoch, sequence) not in out:
                found = [] if epoch <= self._ended[group] else self._take(epoch, group, wanted)
                out[epoch, sequence] = found
                if not found:
                    self._ended[group] = max(self._ended[group], epoch)
                    if self._free.get(epoch) and not self.drop_last:
                        self._short.add(epoch)
                    self._hand_on()
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
                self._hand_on()

    def read(self) -> list[Range]:
        """Return what is known to be read of the epochs that groups are in."""
        with self._lock:
            return list(self._read)

    def leave_out(self, drawn: Sequence[Range]) -> None:
        """Take over from a host that was lost: in the epochs of what was drawn, only the rest is left."""
        with self._lock:
            for epoch in {each[0] for each in drawn}:
                self._free[epoch] = rest_of(drawn, epoch, self.samples)
            self._read = merged(drawn)

    def free(self) -> list[tuple[int, int, int, int]]:
        """Return what nobody has drawn yet, for a checkpoint: epoch to read it in (-1 is the next one), range."""
        with self._lock:
            kept = [(at, *each) for at, ranges in self._free.items() for each in ranges]
            empty = [(at, at, 0, 0) for at, ranges in self._free.items() if not ranges]
            return [*kept, *empty, *((-1, *each) for each in self._returned)]

    def restore(self, epoch: int, free: Sequence[Sequence[int]]) -> None:
        """Go on where so much was not drawn yet.

        Args:
            epoch: of the group that goes on.
            free: from ``free``.
        """
        with self._lock:
            self._free = {}
            for at, begin_epoch, begin, end in free:
                if at >= 0:
                    self._free.setdefault(at, []).extend([(begin_epoch, begin, end)] if end > begin else [])
            self._returned = [(each[1], each[2], each[3]) for each in free if each[0] < 0]
            self._read = merged([each for at in self._free for each in rest_of(self._free[at], at, self.samples)])
            for group, out in self._out.items():
                out.clear()
                self._at[group], self._ended[group] = epoch, -1
                self._confirmed[group] = self._counted[group] = (0, 0)

    def _count(self, group: int) -> None:
        """Note what a group has confirmed since the last time as read."""
        since, to = self._counted[group], self._confirmed[group]
        found = [r for key, ranges in self._out[group].items() if since <= key < to for r in ranges]
        if found:
            oldest = min(self._at[each] for each in self._at if each not in self._gone) - 1
            self._read = merged([each for each in [*self._read, *found] if each[0] >= oldest])
            for epoch in [epoch for epoch in self._free if epoch < oldest]:
                del self._free[epoch]
        self._counted[group] = to

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

    def _open(self) -> list[int]:
        """Return the epochs of which a working group may still draw, first ones first."""
        at = {
            self._at[g] if self._ended[g] < self._at[g] else self._at[g] + 1
            for g in self._at
            if g not in self._gone
        }
        return sorted(at)

    def _give_back(self, ranges: list[Range]) -> None:
        for each in reversed(ranges):
            epoch = next((at for at in self._open() if at >= each[0]), max(self._open(), default=-1))
            if epoch in self._free:
                self._free[epoch].insert(0, each)
            else:
                self._returned.insert(0, each)

    def _hand_on(self) -> None:
        """Leave to the next epoch what no working group can read in its own."""
        still = min(self._open(), default=0)
        for epoch in [epoch for epoch in self._short if epoch < still]:
            self._short.discard(epoch)
            rest, self._free[epoch] = self._free.get(epoch, []), []
            self._give_back(rest)


def check_sizes(sizes: Sequence[int], samples: int) -> None:
    """Refuse groups of more ranks than an epoch has samples."""
    if samples < max(sizes):
        raise UserError(f"{samples} samples cannot be shared by a group of {max(sizes)} ranks")


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


def merged(ranges: Sequence[Range]) -> list[Range]:
    """Return the same samples in as few ranges as possible.

    Example:
        >>> merged([(0, 4, 6), (0, 0, 2), (0, 2, 3), (1, 0, 5)])
        [(0, 0, 3), (0, 4, 6), (1, 0, 5)]
    """
    found: list[Range] = []
    for epoch, begin, end in sorted(ranges):
        if found and found[-1][0] == epoch and begin <= found[-1][2]:
            found[-1] = (epoch, found[-1][1], max(end, found[-1][2]))
        elif end > begin:
            found.append((epoch, begin, end))
    return found
