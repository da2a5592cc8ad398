"""A user's subject, trained stretch by stretch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from omnizen.errors import UserError
from omnizen.measure.subject import Subject
from omnizen.plan.tuner.actions import Point
from omnizen.train.hyper import check_momentum
from omnizen.train.loader import can_share, inner_loader
from omnizen.types import hash_text


class SubjectTask:
    """What a ``Subject`` is trained on: its loader, else its batches of the largest size again and again.

    A plain DataLoader is dealt out: each epoch has an order that all ranks share, rank r of n reads every n-th
    sample of it, in batches as large as a strategy wants. Other loaders stay as they are, pass after pass.

    Raises:
        UserError: the optimizer has several step sizes, or no momentum.
    """

    def __init__(self, subject: Subject, rank: int, size: int, seed: int = 0) -> None:
        self.subject, self.rank, self.size, self.seed = subject, rank, size, seed
        self.divisible = can_share(subject.loader)
        self.batch = max(subject.batches)
        self.place = 0
        """Samples that this rank has read; batches, where they are the subject's own."""
        if self.divisible:
            assert isinstance(subject.loader, DataLoader)
            assert subject.loader.batch_size is not None
            self.batch = subject.loader.batch_size
            self._samples = len(subject.loader.dataset)  # type: ignore[arg-type]
            if self._samples < size:
                raise UserError(f"the loader has {self._samples} samples, and {size} ranks read different ones")
        optimizer = self.make_optimizer(subject.model, Point(1, 0.1, 0.0))
        check_momentum([optimizer])
        steps = sorted({float(group["lr"]) for group in optimizer.param_groups})
        if len(steps) > 1:
            raise UserError(f"one step size is tuned, and the optimizer has {', '.join(map(str, steps))}")
        self.step = steps[0] if subject.optimizer is not None else 0.1

    def make_model(self) -> nn.Module:
        """Return a copy."""
        return copy.deepcopy(self.subject.model)

    def make_optimizer(self, model: nn.Module, point: Point) -> Optimizer:
        """Return the user's optimizer, SGD where none was given."""
        if self.subject.optimizer is None:
            return torch.optim.SGD(model.parameters(), lr=point.step, momentum=max(point.momentum, 0.0))
        made = self.subject.optimizer(model)
        if not isinstance(made, Optimizer):
            raise UserError(
                f"the subject's optimizer must return one torch optimizer for a model, got {type(made).__name__}"
            )
        return made

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the user's loss."""
        return self.subject.loss(model, batch)

    def batches(self, samples: int) -> Iterator[Any]:
        """Return batches without end."""
        if self.divisible:
            yield from self._dealt(samples)
            return
        given: Any = self.subject.loader
        if given is None:
            given = self.subject.batches[self.batch]
            while True:
                self.place += 1
                yield given[(self.place - 1) % len(given)]
        while True:
            found = False
            for batch in given:
                found = True
                yield batch
            if not found:
                raise UserError("the subject's loader gave no batch; give one that can be passed over again")

    def _dealt(self, samples: int) -> Iterator[Any]:
        loader = self.subject.loader
        assert isinstance(loader, DataLoader)
        where = hash_text(f"tuning/{self.seed}/{self.place}/{self.rank}")
        inner = inner_loader(loader, _Indices(self, samples), torch.Generator().manual_seed(where))
        for batch in inner:
            self.place += samples
            yield batch

    def indices(self, place: int) -> Iterator[int]:
        """Return this rank's samples without end, from its ``place``-th on."""
        mine = self._samples // self.size
        while True:
            epoch, at = divmod(place, mine)
            drawn = torch.Generator().manual_seed(hash_text(f"tuning/{self.seed}/{epoch}"))
            order = torch.randperm(self._samples, generator=drawn)[self.rank :: self.size][:mine]
            yield from order[at:].tolist()
            place += mine - at


class _Indices:
    """Batches of a rank's samples from where its task is."""

    def __init__(self, task: SubjectTask, samples: int) -> None:
        self._task, self._each = task, samples

    def __iter__(self) -> Iterator[list[int]]:
        source = self._task.indices(self._task.place)
        while True:
            yield [next(source) for _ in range(self._each)]
