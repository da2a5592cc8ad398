"""Weights ahead of themselves: where gradients are taken under detached error feedback, and the way back.

Under a scheme with ``detached`` (lambda) above 0 each rank's weights stand, between two optimizer steps, at
``y = x - lambda * lr * e``: x is equal on all ranks, e what this rank still owes. The optimizer steps x.

Reference: Xu and Huang, "Detached Error Feedback for Distributed SGD with Random Sparsification", ICML 2022.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from omnizen.errors import UserError
from omnizen.reducers.feedback import RESIDUAL
from omnizen.reducers.local_momentum import find
from omnizen.train.rows import real
from omnizen.train.units import DenseBucket

if TYPE_CHECKING:
    from omnizen.train.sync import Engine


class Detached:
    """Moves the weights of detached buckets around each optimizer step; does nothing where there are none.

    Costs a copy of those weights. What is owed is in units of the gradient, so a change of the learning rate scales
    it.

    Args:
        engine: its units are looked at; they must have been laid out.
        optimizers: plain SGD, since momentum is kept before the gradients are shortened.

    Raises:
        UserError: an optimizer has momentum of its own.
    """

    def __init__(self, engine: Engine, optimizers: Sequence[Optimizer]) -> None:
        self._engine, self._optimizers = engine, list(optimizers)
        buckets = [unit for unit in engine.units if isinstance(unit, DenseBucket)]
        with_momentum = [unit for unit in buckets if (found := find(unit.reducer)) is not None and found.momentum]
        _check_momentum(with_momentum, _of_groups(self._optimizers, "momentum"))
        if with_momentum and engine.alone:
            warnings.warn(
                f"{with_momentum[0].reducer.name} keeps momentum where gradients are shortened; with one rank "
                "nothing is, so the optimizer steps without momentum",
                stacklevel=4,
            )
        self._buckets = [] if engine.alone else [unit for unit in buckets if _ahead(unit)]
        self._kept = {id(p): p.detach().clone() for unit in self._buckets for p in unit.params}
        self._step_sizes = _of_groups(self._optimizers, "lr")
        """Those of the last step, by parameter: a schedule may have moved on since."""
        if self._buckets:
            for optimizer in optimizers:
                optimizer.register_step_pre_hook(lambda *_: self.attach())
                optimizer.register_step_post_hook(lambda *_: self.keep())

    def refuse(self, where: str) -> None:
        """Refuse a strategy that does not go with weights that stand ahead of themselves, where there are any."""
        if self._buckets:
            name = self._buckets[0].reducer.name
            raise UserError(f"{name} moves weights between steps, so it does not go with {where}")

    @torch.no_grad()
    def attach(self) -> None:
        """Put x into the weights."""
        for param in self._params():
            param.copy_(self._kept[id(param)])

    @torch.no_grad()
    def keep(self) -> None:
        """Take the weights for x, after an optimizer step, and move them to y."""
        self._step_sizes = _of_groups(self._optimizers, "lr")
        self._leave()

    def state_dict(self) -> dict[str, float]:
        """Return the step sizes with which weights were moved, by parameter name."""
        return {
            slot.name: self._step_sizes.get(id(param), 0.0)
            for unit in self._buckets
            for slot, param in zip(unit.layout.slots, unit.params, strict=True)
        }

    @torch.no_grad()
    def load_state_dict(self, step_sizes: dict[str, float]) -> None:
        """Take the weights for x and move them to y, as ``state_dict`` says."""
        for unit in self._buckets:
            for slot, param in zip(unit.layout.slots, unit.params, strict=True):
                self._step_sizes[id(param)] = step_sizes.get(slot.name, 0.0)  # nothing is owed of what was exact
        self._leave()

    def _leave(self) -> None:
        for param in self._params():
            self._kept[id(param)].copy_(param)
        self._move(lambda unit: _owed(unit), _ahead)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Let the weights be x inside, equal on all ranks."""
        with self._as_before():
            self.attach()
            yield

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the weights be ``x - lr * mean of e`` inside (collective); gradients must not be taken there."""
        means = {unit.name: self._engine.call(lambda u=unit: self._mean_owed(u)) for unit in self._buckets}  # type: ignore[misc]
        with self._as_before():
            self.attach()
            self._move(lambda unit: means[unit.name], lambda _: 1.0)
            yield

    @contextmanager
    def _as_before(self) -> Iterator[None]:
        before = [param.detach().clone() for param in self._params()]
        try:
            yield
        finally:
            with torch.no_grad():
                for param, old in zip(self._params(), before, strict=True):
                    param.copy_(old)

    def _params(self) -> list[Parameter]:
        return [param for unit in self._buckets for param in unit.params]

    def _mean_owed(self, unit: DenseBucket) -> Tensor:
        comm = self._engine.gradients
        return comm.all_reduce(_owed(unit)).wait() / comm.size

    @torch.no_grad()
    def _move(self, owed: Callable[[DenseBucket], Tensor], share: Callable[[DenseBucket], float]) -> None:
        for unit in self._buckets:
            flat = owed(unit)
            for slot, param in zip(unit.layout.slots, unit.params, strict=True):
                size = share(unit) * self._step_sizes.get(id(param), 0.0)
                real(param.detach()).sub_(unit.layout.view(flat, slot).to(param.dtype), alpha=size)


def _ahead(unit: DenseBucket) -> float:
    found = find(unit.reducer)
    return found.detached if found is not None else 0.0


def _owed(unit: DenseBucket) -> Tensor:
    """Return the residual of a bucket, which every wrapper keeps below its own name."""
    return next(tensor for key, tensor in unit.state.slots.items() if key.split(".")[-1] == RESIDUAL)


def _of_groups(optimizers: Sequence[Optimizer], setting: str) -> dict[int, float]:
    """Return a setting of the optimizers' groups for each parameter, by ``id``."""
    return {
        id(param): float(group.get(setting) or 0.0)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for param in group["params"]
    }


def _check_momentum(units: Sequence[DenseBucket], momentum: dict[int, float]) -> None:
    for unit in units:
        for slot, param in zip(unit.layout.slots, unit.params, strict=True):
            if momentum.get(id(param)):
                raise UserError(
                    f"{unit.reducer.name} keeps the momentum of {slot.name} itself, before it leaves anything out; "
                    "give the optimizer momentum=0 (and the scheme its momentum)"
                )
