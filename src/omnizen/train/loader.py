"""Who reads which sample: each one once an epoch, in a shared order, no rank ever without a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import fields, is_dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from omnizen.errors import UserError
from omnizen.train.shares import Shares
from omnizen.types import hash_text

Around = Callable[[Iterable[Any]], Iterator[Any]]
"""What sees batches before they are counted and handed out, and may read ahead."""


def step_sizes(samples: int, ranks: int, batch: int, *, drop_last: bool) -> list[int]:
    """Return how many samples all ranks together read in each step of an epoch.

    The last steps are evened out so that every rank has at least one sample in each.

    Example:
        >>> step_sizes(7, 2, 2, drop_last=False), step_sizes(9, 2, 2, drop_last=False)
        ([4, 3], [4, 3, 2])

    Raises:
        UserError: when there are fewer samples than ranks.
    """
    if samples < ranks:
        raise UserError(f"{samples} samples cannot be shared by {ranks} ranks: each needs at least one")
    full, rest = divmod(samples, ranks * batch)
    sizes = [ranks * batch] * full
    if not rest or drop_last:
        if not sizes:
            raise UserError(
                f"drop_last=True drops everything: {samples} samples are fewer than {ranks} batches of {batch}"
            )
        return sizes
    if rest >= ranks or not sizes:
        return [*sizes, rest]
    last = sizes.pop() + rest
    if last < 2 * ranks:
        return [*sizes, last]  # one sample more than a batch on some ranks, rather than none on others
    return [*sizes, last - last // 2, last // 2]


def shared_order(loader: DataLoader[Any], samples: int, seed: int, epoch: int) -> list[int]:
    """Return the order of an epoch's samples, equal on all ranks.

    Args:
        samples: length that the data set had.

    Raises:
        UserError: the data set has another length now.
    """
    dataset, sampler = cast(Sized, loader.dataset), loader.sampler
    if len(dataset) != samples:
        raise UserError(
            f"the data set had {samples} samples at run.prepare() and has {len(dataset)} now; to train on data "
            "that changes, give run.prepare() an iterable of each rank's own batches"
        )
    if not isinstance(sampler, RandomSampler):
        return list(range(len(dataset)))
    shared = torch.Generator().manual_seed(hash_text(f"order/{seed}/{epoch}"))
    return list(
        RandomSampler(dataset, replacement=sampler.replacement, num_samples=sampler._num_samples, generator=shared)
    )


class ShardSampler:
    """One rank's batches of indices; a global batch is ``ranks * batch`` consecutive samples of a shared order.

    Args:
        shares: how each global batch is divided among the ranks.
    """

    def __init__(self, loader: DataLoader[Any], rank: int, ranks: int, seed: int, shares: Shares) -> None:
        self.rank, self.seed, self.shares = rank, seed, shares
        self._loader, self._dataset = loader, cast(Sized, loader.dataset)
        self.epoch = self.skip = self.turn = 0
        assert loader.batch_size is not None
        self._samples = len(self._dataset)
        samples = len(loader.sampler) if isinstance(loader.sampler, RandomSampler) else self._samples
        self.steps = step_sizes(samples, ranks, loader.batch_size, drop_last=loader.drop_last)

    def order(self) -> list[int]:
        """Return the epoch's order of all samples, equal on all ranks.

        Raises:
            UserError: the data set has another length than it had.
        """
        return shared_order(self._loader, self._samples, self.seed, self.epoch)

    def samples(self, step: int) -> int:
        """Return this rank's samples in a step of the pass under way."""
        return self.shares.parts(self.steps[step], (self.turn, step))[self.rank]

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[list[int]]:
        order, start = self.order(), 0
        for i, size in enumerate(self.steps):
            if i >= self.skip:
                begin, end = self.shares.draw(size, self.rank, (self.turn, i))
                yield order[start + begin : start + end]
            start += size


def inner_loader(loader: DataLoader[Any], batches: Any, generator: torch.Generator) -> DataLoader[Any]:
    """Return a loader like the user's that reads other batches of indices."""
    options = {
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }
    return DataLoader(loader.dataset, batch_sampler=batches, generator=generator, **options)


class ShardedLoader:
    """A DataLoader over this rank's share; each pass is the next epoch.

    Args:
        count: called with the number of samples of each batch that is handed out.
        shares: how much of a global batch each rank reads; as much as every other unless given.

    ``drop_last`` drops the last incomplete global batch. With workers, their seeds follow the epoch and rank, and
    the global generator is not touched.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        rank: int,
        ranks: int,
        seed: int,
        count: Callable[[int], None],
        shares: Shares | None = None,
    ) -> None:
        assert loader.batch_size is not None
        self.shares = shares or Shares((loader.batch_size,) * ranks)
        self.sampler = ShardSampler(loader, rank, ranks, seed, self.shares)
        self.epoch, self.position, self.batch_size = 0, 0, loader.batch_size
        self._count, self._resumed, self._within = count, True, False
        self.around: Around = iter
        self._generator = torch.Generator()
        self.inner = inner_loader(loader, self.sampler, self._generator)
        self.dataset = loader.dataset

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        if self._resumed:
            self._resumed = False
        else:
            self.epoch, self.position = self.epoch + 1, 0
        self.sampler.turn += not self._within  # a pass of its own, unless a saved one goes on
        self._within = False
        self.sampler.epoch, self.sampler.skip = self.epoch, self.position
        self._generator.manual_seed(hash_text(f"workers/{self.sampler.seed}/{self.epoch}/{self.sampler.rank}"))
        for batch in self.around(self.inner):
            self._count(self.sampler.samples(self.position))
            self.position += 1
            yield batch
        self.epoch, self.position, self._resumed = self.epoch + 1, 0, True

    def batch_in_hand(self) -> str:
        """Return which batch was handed out last, in words; the same on all ranks."""
        return f"batch {self.position - 1} of epoch {self.epoch}"

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of the given epoch; not needed, passes count themselves."""
        self.epoch, self.position, self._resumed, self._within = epoch, 0, True, False

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the batches handed out in it; after a whole pass, the beginning of the next."""
        turn = self.sampler.turn
        place = {"epoch": self.epoch, "position": self.position, "pass": turn}
        return {**place, **self._shape(), "sizes": self.shares.state_dict((turn, self.position))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next pass go on where the saved one was.

        Raises:
            UserError: the place is in other data, or in batches of another size.
        """
        if "free" in state:
            raise UserError(
                "the saved place in the data is one of compute groups, which draw their samples; resume with the "
                "same groups"
            )
        for name, now in self._shape().items():
            if state.get(name) != now:
                raise UserError(
                    f"the saved place in the data is one in {state.get(name)} {name}, this loader has {now}; "
                    "resume with the same data and batch size"
                )
        self.epoch, self.position, self._resumed = state["epoch"], state["position"], True
        self._within, self.sampler.turn = self.position > 0, state["pass"]
        self.shares.load_state_dict(state["sizes"], (self.sampler.turn, self.position))

    def _shape(self) -> dict[str, int]:
        return {"samples": sum(self.sampler.steps), "batches an epoch": len(self.sampler)}


class CountingLoader:
    """Any other iterable of batches: left as it is, samples counted, its end told to the other ranks.

    Args:
        ended: called when there are no more batches; raises when another rank goes on.
    """

    def __init__(self, loader: Any, count: Callable[[int], None], ended: Callable[[], None]) -> None:
        self.inner, self._count, self._ended = loader, count, ended
        self.around: Around = iter
        self._place: Any = None
        """State of the loader at the batch in hand, where it is read ahead."""

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not there yet while unpickling or copying
            raise AttributeError(name)
        found = getattr(self.inner, name)
        if name == "state_dict" and self._place is not None:
            return lambda: self._place
        if name == "load_state_dict":
            self._place = None
        return found

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        places: deque[Any] = deque()
        noted = self.around is not iter and hasattr(self.inner, "state_dict")
        batches = self._noting(places) if noted else self.inner
        for batch in self.around(batches):
            self._place = places.popleft() if places else None
            self._count(batch_samples(batch))
            yield batch
        self._place = None
        self._ended()

    def _noting(self, places: deque[Any]) -> Iterator[Any]:
        for batch in self.inner:
            places.append(self.inner.state_dict())
            yield batch


def batch_samples(batch: Any) -> int:
    """Return the first dimension of the first tensor in a batch; 1 where there is none."""
    found = first_tensor(batch)
    return found.shape[0] if found is not None and found.dim() else 1


def first_tensor(batch: Any) -> Tensor | None:
    """Return the first tensor inside nested lists, tuples, mappings and dataclasses."""
    if isinstance(batch, Tensor):
        return batch
    inside: Iterable[Any] = batch if isinstance(batch, list | tuple) else ()
    if isinstance(batch, Mapping):
        inside = batch.values()
    elif is_dataclass(batch):
        inside = [getattr(batch, each.name) for each in fields(batch)]
    return next((t for t in map(first_tensor, inside) if t is not None), None)


def can_share(loader: Any) -> bool:
    """Return whether a loader's samples can be dealt out: a map dataset, read in order or shuffled, in batches."""
    return (
        type(loader) is DataLoader
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_size is not None
        and type(loader.sampler) in (SequentialSampler, RandomSampler)
    )
