"""A DataLoader dealt out for local steps: every rank's epoch ends in the same round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from omnizen.errors import UserError
from omnizen.train.control import Turn
from omnizen.train.dealing import Rounds, deal, unread
from omnizen.train.hard_samples import Losses
from omnizen.train.loader import inner_loader, shared_order
from omnizen.train.local import LocalSteps
from omnizen.train.local_checks import deal_of
from omnizen.types import hash_text

if TYPE_CHECKING:
    from omnizen.train.run import Run


class GivenBatches:
    """Batches of indices that were dealt to this rank."""

    def __init__(self) -> None:
        self.batches: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches:
            yield batch.tolist()


class LocalLoader:
    """This rank's batches, round by round; each pass is the next epoch.

    An epoch has ``floor(N / (b * sum of all ranks' steps))`` whole rounds; what is left makes a shorter last one,
    unless ``drop_last`` is set or fewer than two samples a rank are left. When the ranks' numbers of steps change,
    what no rank has read yet is dealt anew.

    Args:
        loader: the user's, which ``can_share``.
        seed: of the shared orders.
        count: called with the number of samples of each batch that is handed out.
    """

    def __init__(self, loader: DataLoader[Any], run: Run, driver: LocalSteps, seed: int) -> None:
        self._run, self._driver, self._seed, self._given = run, driver, seed, loader
        self._count: Callable[[int], None] = run._count
        driver.dealt = True
        self._generator = torch.Generator()
        self.sampler = GivenBatches()
        self.inner = inner_loader(loader, self.sampler, self._generator)
        self.dataset, self.batch_size = loader.dataset, loader.batch_size
        self._samples = len(self.dataset)  # type: ignore[arg-type]
        self.losses = Losses(self._samples) if driver.strategy.pool > 1 else None
        self.epoch, self._resumed, self._agreed = 0, True, False
        self._stretch = self._done = self._position = 0
        self._left = torch.empty(0, dtype=torch.int64)
        self._begin_epoch(0)
        self.in_hand: Tensor | None = None
        """Indices of the samples of the batch in hand."""

    def __len__(self) -> int:
        """Return the batches of this rank's epoch, should the numbers of local steps stay as they are."""
        how = deal_of(self._driver.strategy, self._driver.counts.now, self._given)
        samples, rank = len(self._given.sampler), self._run.rank  # type: ignore[arg-type]
        tail = how.tail(samples)
        last = -(-tail[rank] // how.batch) if tail else 0
        return how.rounds(samples) * how.counts[rank] * how.accumulate + last

    def __iter__(self) -> Iterator[Any]:
        if not self._resumed:
            self._begin_epoch(self.epoch + 1)
        self._resumed = False
        self._driver.meet(Turn.DEAL)
        while (dealt := self._deal()) is not None:
            rounds = dealt[self._run.rank]
            rest = [batch for batches in rounds[self._done :] for batch in batches]
            self.sampler.batches = rest[self._position :]
            place = f"workers/{self._seed}/{self.epoch}/{self._stretch}/{self._run.rank}"
            self._generator.manual_seed(hash_text(place))
            batches, changed = iter(self.inner), False
            while self._done < len(rounds) and not changed:
                yield from self._round(rounds[self._done], batches)
                changed = self._driver.end_round()
                self._done, self._position = self._done + 1, 0
            self._left = unread(self._left, dealt, self._done)
            self._done, self._agreed, self._stretch = 0, False, self._stretch + 1
            if not changed:
                break
        self._begin_epoch(self.epoch + 1)

    def _round(self, mine: list[Tensor], batches: Iterator[Any]) -> Iterator[Any]:
        while self._position < len(mine):
            self._driver.begin()
            batch = next(batches)
            self.in_hand = mine[self._position]
            self._position += 1
            self._count(len(self.in_hand))
            yield batch
        self.in_hand = None

    def _deal(self) -> list[Rounds] | None:
        """Deal what is left of the epoch; None when that is too little for another round."""
        how = deal_of(self._driver.strategy, self._driver.counts.now, self._given)
        if self._stretch and not how.rounds(len(self._left)) and not how.tail(len(self._left)):
            return None
        if self.losses is not None and not self._agreed:
            losses = self.losses
            self._run.engine.call(lambda: losses.agree(self._run.control))
        self._agreed = True
        drawn = torch.Generator().manual_seed(hash_text(f"pool/{self._seed}/{self.epoch}/{self._stretch}"))
        return deal(self._left, how, None if self.losses is None else self.losses.known, drawn)

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch, self._resumed = epoch, True
        self._stretch = self._done = self._position = 0
        self._agreed = False
        order = shared_order(self._given, self._samples, self._seed, epoch)
        self._left = torch.tensor(order, dtype=torch.int64)

    def note_losses(self, losses: Any) -> None:
        """Note the losses of the batch in hand, where samples are picked by them.

        Raises:
            UserError: no batch is in hand, or not one loss for each of its samples.
        """
        if self.losses is None:
            return
        if self.in_hand is None:
            raise UserError("run.note_losses() before a batch was read: note the losses of the batch in hand")
        self.losses.note(self.in_hand, losses)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of the given epoch; not needed, passes count themselves."""
        self._begin_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the epoch: rounds and batches done of the samples that were left when last dealt."""
        return {
            "epoch": self.epoch,
            "stretch": self._stretch,
            "done": self._done,
            "position": self._position,
            "agreed": self._agreed,
            "left": self._left if self._stretch else None,
            "losses": None if self.losses is None else self.losses.state_dict(),
            "shape": self._shape(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next pass go on where the saved one was.

        Raises:
            UserError: the place is in other data, or in batches of another size.
        """
        for name, now in self._shape().items():
            if state.get("shape", {}).get(name) != now:
                raise UserError(
                    f"the saved place in the data is one in {state.get('shape', {}).get(name)} {name}, this loader "
                    f"has {now}; resume with the same data, batch size and strategy"
                )
        self._begin_epoch(state["epoch"])
        self._stretch, self._done, self._position = state["stretch"], state["done"], state["position"]
        self._agreed = state["agreed"]
        if state["left"] is not None:
            self._left = state["left"]
        if self.losses is not None:
            self.losses.load_state_dict(state["losses"])

    def _shape(self) -> dict[str, Any]:
        return {
            "samples": self._samples,
            "samples a batch": self.batch_size,
            "batches a step": self._driver.strategy.accumulate,
            "as pool": self._driver.strategy.pool,
        }
