"""A loader whose batches a group draws when it is ready, so that fast groups read more of an epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import DataLoader

from omnizen.errors import UserError
from omnizen.plan.apportion import apportion
from omnizen.train.groups.messages import Ask
from omnizen.train.groups.tickets import Range, TicketBook
from omnizen.train.loader import inner_loader, shared_order, step_sizes
from omnizen.types import hash_text

if TYPE_CHECKING:
    from omnizen.train.groups.driver import Groups


class TicketSampler:
    """This rank's part of each batch that its group draws.

    Args:
        samples: of each rank in a step, of which the proportion counts; as many on all when empty.
    """

    def __init__(self, loader: DataLoader[Any], driver: Groups, seed: int, samples: Sequence[int] = ()) -> None:
        assert loader.batch_size is not None
        self._driver, self._loader, self._seed = driver, loader, seed
        self._join(samples)
        self._dataset_samples = len(cast(Sized, loader.dataset))
        self.samples = len(self._order_of(0))
        size = driver.members.size
        self._steps = step_sizes(self.samples, size, loader.batch_size, drop_last=loader.drop_last)
        self._orders: dict[int, list[int]] = {}
        self.epoch = self.sequence = self.done = self._handed = 0
        self.ahead: deque[list[Range]] = deque()
        """Batches that were drawn and are not handed out yet."""
        self.drawn: list[Range] = []
        """What the group drew in this epoch and the one before."""
        self.heard: list[Range] = []
        """What all groups are known to have read."""
        self.first: list[list[Range]] = []
        """Batches to begin with, that were drawn before a checkpoint and not read."""

    def _join(self, samples: Sequence[int]) -> None:
        members, batch_size = self._driver.members, self._loader.batch_size
        assert batch_size is not None
        group = members.groups[self._driver.group]
        everyone = apportion(batch_size * members.size, samples or (1,) * members.size)
        self._place = group.index(self._driver.rank)
        self._parts = tuple(everyone[rank] for rank in group)
        self._wanted = sum(self._parts)

    def __len__(self) -> int:
        return len(self._steps)

    def _order_of(self, epoch: int) -> list[int]:
        return shared_order(self._loader, self._dataset_samples, self._seed, epoch)

    def __iter__(self) -> Iterator[list[int]]:
        while ranges := self._draw():
            self.drawn += ranges
            indices = [i for at, begin, end in ranges for i in self._order(at)[begin:end]]
            begin, end = self._part(len(indices))
            self.ahead.append(ranges)
            yield indices[begin:end]

    def _draw(self) -> list[Range]:
        if self.first:
            return self.first.pop(0)
        numbers = (self.epoch, self.sequence, self._wanted, max(0, self.done))
        found, read = self._driver.client.ask(Ask.DRAW, numbers).wait().parts
        self.sequence += 1
        self.heard = [(epoch, begin, end) for epoch, begin, end in read.tolist()]
        return [(epoch, begin, end) for epoch, begin, end in found.tolist()]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            self._orders = {at: order for at, order in self._orders.items() if at >= epoch - 1}
            self._orders[epoch] = self._order_of(epoch)
        return self._orders[epoch]

    def begin(self, epoch: int) -> None:
        """Begin an epoch."""
        self.drawn = [each for each in self.drawn if each[0] >= epoch - 1]
        self.epoch, self.sequence = epoch, 0
        self.done = self._handed = -len(self.first)
        self.ahead.clear()

    def handed_out(self) -> int:
        """Note that the next batch is handed out; returns its samples on this rank."""
        count = sum(end - begin for _, begin, end in self.ahead.popleft())
        begin, end = self._part(count)
        self._handed += 1
        return end - begin

    @property
    def handed(self) -> int:
        """Batches of the epoch that were handed out; below 0 while some of before a checkpoint are left."""
        return self._handed

    def regroup(self, samples: Sequence[int], read: list[Range]) -> None:
        """Draw for another group from now on, in the epoch under way.

        Args:
            samples: as at the start.
            read: what all groups have read.
        """
        self._join(samples)
        self.drawn, self.heard = [], read
        self.sequence = self.done = self._handed = 0
        self.ahead.clear()

    def hear(self) -> None:
        """Hear from the host of the order what all groups have read."""
        found = self._driver.client.ask(Ask.DRAWN, ()).wait().parts[0].tolist()
        self.heard = [(epoch, begin, end) for epoch, begin, end in found]

    def stepped(self) -> None:
        """Note that the group has contributed what it learnt of all batches handed out so far."""
        self.done = self._handed

    def _part(self, count: int) -> tuple[int, int]:
        parts = self._parts if count == self._wanted else apportion(count, self._parts)
        ends = list(accumulate(parts, initial=0))
        return ends[self._place], ends[self._place + 1]

    def state_dict(self) -> dict[str, Any]:
        """Return what was drawn and not handed out, and what of the epoch was not drawn, by anybody."""
        free = self._driver.client.ask(Ask.FREE, ()).wait().parts[0].tolist()
        return {"free": free, "ahead": [[list(r) for r in ranges] for ranges in self.ahead]}

    def load_state_dict(self, epoch: int, state: dict[str, Any]) -> None:
        """Go on from there; on all ranks, before any draws."""
        book = self._driver.service.book
        assert book is not None
        book.restore(epoch, state["free"])
        self.first = [[(at, begin, end) for at, begin, end in ranges] for ranges in state["ahead"]]
        self.drawn, self.heard = [], book.read()


_NO_MORE = object()


class GroupLoader:
    """A DataLoader whose order is shared by all groups; each pass is the next epoch, and ends when it has no more.

    Args:
        count: called with the samples of each batch that is handed out.
        samples: of each rank in a step, of which the proportion counts; as many on all when empty.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        driver: Groups,
        seed: int,
        count: Callable[[int], None],
        samples: Sequence[int] = (),
    ) -> None:
        self.sampler = TicketSampler(loader, driver, seed, samples)
        self._driver, self._count = driver, count
        sizes = [len(group) for group in driver.members.groups]
        driver.service.book = TicketBook(sizes, samples=self.sampler.samples, drop_last=loader.drop_last)
        driver.service.drawn = lambda: [*self.sampler.drawn, *self.sampler.heard]
        driver.stepped = self.sampler.stepped
        self.epoch, self._resumed, self.batch_size = 0, True, loader.batch_size
        self._regrouped = False
        self._generator = torch.Generator()
        self.dataset = loader.dataset
        self.inner = inner_loader(loader, self.sampler, self._generator)

    def __len__(self) -> int:
        """Batches of an epoch if all groups were equally fast."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        if not self._resumed:
            self.epoch += 1
        sampler = self.sampler
        sampler.begin(self.epoch)
        self._resumed = self._regrouped = False
        self._generator.manual_seed(hash_text(f"workers/{self.epoch}/{self._driver.rank}"))
        batches = iter(self.inner)
        while (batch := next(batches, _NO_MORE)) is not _NO_MORE:
            self._count(sampler.handed_out())
            yield batch
            if self._regrouped:  # what workers have read ahead was drawn for another group
                self._regrouped, batches = False, iter(self.inner)
        self.epoch, self._resumed = self.epoch + 1, True

    def place(self) -> tuple[int, int, int]:
        """Return the pass under way or next, the last one that was begun, and the batches read in that."""
        return self.epoch, self.sampler.epoch, self.sampler.handed

    def regroup(self, samples: Sequence[int], read: Sequence[int], epoch: int) -> None:
        """Go on for other groups, while nobody draws.

        Args:
            samples: of each rank in a step, of which the proportion counts.
            read: batches that each old group has handed out in the pass that was begun last.
            epoch: that one.
        """
        book = self._driver.service.book
        assert book is not None
        sizes = [len(group) for group in self._driver.members.groups]
        book.regroup(sizes, epoch, read, over=self.epoch > epoch)
        self.sampler.regroup(samples, book.read())
        self._regrouped = True

    def batch_in_hand(self) -> str:
        """Return which batch was handed out last, in words; the same in all of a group."""
        return f"batch {self.sampler.handed - 1} of this group's epoch {self.epoch}"

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data, after a meeting and before anybody goes on."""
        place = {"epoch": self.epoch, "resumed": self._resumed, "samples": self.sampler.samples}
        return {**place, "groups": self._driver.members.groups, **self.sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next pass go on where the saved one was.

        Raises:
            UserError: the place is in other data, or was not saved by the same groups.
        """
        here = {"samples": self.sampler.samples, "groups": self._driver.members.groups}
        for name, now in here.items():
            if state.get(name) != now:
                raise UserError(
                    f"the saved place in the data is one with {name} {state.get(name)}, this run has {now}; resume "
                    "with the same data and the same compute groups"
                )
        self.epoch, self._resumed = state["epoch"], True
        self.sampler.load_state_dict(self.epoch, state)
