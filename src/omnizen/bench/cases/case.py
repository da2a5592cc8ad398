"""What a case offers: a model, its optimizer, batches that anyone can make again, and a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from omnizen.errors import UserError

Batch = tuple[Tensor, ...]


class Case(ABC):
    """One model with its data, the same for every method, rank count and run with the same seed.

    A batch is a pure function of (step, rank, size, batch, seed), so that one process can make again what any rank
    read, and a run that resumes can go on at any step. The model is called once in a loss, with the whole batch, as
    DistributedDataParallel requires.
    """

    name: ClassVar[str]
    unit: ClassVar[Literal["tokens", "samples"]]

    @abstractmethod
    def make_model(self, *, sparse: bool, seed: int) -> nn.Module:
        """Return a new model; sparse and dense ones have equal weights for equal seeds.

        Args:
            sparse: whether embedding gradients are sparse tensors.
            seed: of the first weights; the global generator is left as it was.
        """

    @abstractmethod
    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the case's optimizer for a model, one that treats sparse and dense gradients alike."""

    @abstractmethod
    def batch_at(self, step: int, *, rank: int, size: int, batch: int, seed: int) -> Batch:
        """Return what a rank reads at a step.

        Args:
            step: from 0, without end.
            rank: of ``size``.
            size: ranks that share the data.
            batch: samples (sequences) of one rank.
            seed: of the order and of random choices.

        Raises:
            UserError: the data is too small for so many ranks and samples.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch, a scalar."""

    @property
    def num_samples(self) -> int:
        """Samples that ``take`` knows.

        Raises:
            UserError: the case makes batches by step and rank only.
        """
        raise UserError(f"the case {self.name!r} cannot be dealt out sample by sample; take 'cnn' or 'lm'")

    def take(self, samples: Sequence[int]) -> Batch:
        """Return a batch of the samples with these numbers, each below ``num_samples``."""
        raise UserError(f"the case {self.name!r} has no sample {samples[0]}: it cannot be dealt out")

    def reads(self, batch: Batch) -> dict[str, Tensor]:
        """Return the rows that the loss of a batch looks up, by name of the table."""
        del batch
        return {}

    def units_per_batch(self, batch: int) -> int:
        """Return the tokens or samples in one rank's batch."""
        return batch

    def batches(self, *, rank: int, size: int, batch: int, seed: int) -> Iterator[Batch]:
        """Yield a rank's batches from step 0 on, without end."""
        for step in count():
            yield self.batch_at(step, rank=rank, size=size, batch=batch, seed=seed)

    def union_loss(self, model: nn.Module, step: int, *, size: int, batch: int, seed: int) -> Tensor:
        """Return the mean over all ranks of their losses at a step, in one process.

        Its gradient is what ``size`` ranks that average their gradients must get.
        """
        parts = (self.batch_at(step, rank=rank, size=size, batch=batch, seed=seed) for rank in range(size))
        return torch.stack([self.loss(model, part) for part in parts]).mean()


def shuffled(step: int, *, rank: int, size: int, batch: int, seed: int, total: int) -> Tensor:
    """Return the samples that a rank reads at a step: ``[batch]`` int64, each sample at most once an epoch.

    Every epoch has an order of its own, equal on all ranks; the last samples that fill no whole step are left out.

    Raises:
        UserError: one step needs more samples than there are.
    """
    steps = total // (size * batch)
    if steps == 0:
        raise UserError(f"{size} ranks x batch {batch} need {size * batch} samples; the data has {total}")
    epoch, place = divmod(step, steps)
    order = _order(seed, epoch, total)
    start = (place * size + rank) * batch
    return torch.from_numpy(order[start : start + batch])


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, total: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(total)
