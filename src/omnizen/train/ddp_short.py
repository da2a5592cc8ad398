"""Dense gradients of a DistributedDataParallel module by a scheme that loses something."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from omnizen.protocols import Comm, Reducer
from omnizen.train.router import DENSE_BELOW
from omnizen.train.units import DenseBucket
from omnizen.types import Step


class ShortGradients:
    """Keeps one memory a parameter, whatever buckets DDP makes of them: it makes new ones after the first step.

    Parameters are told apart by the order in which they were first met, which is the same on all ranks.

    Args:
        reducer: takes Dense.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._units: dict[int, DenseBucket] = {}

    def average(self, flat: Tensor, params: Sequence[Tensor], comm: Comm, step: Step) -> Tensor:
        """Return the averages of one bucket, in its layout: small parameters and complex ones whole."""
        mean = torch.empty_like(flat)
        parts = list(zip(params, flat.split([p.numel() for p in params]), strict=True))
        out = mean.split([p.numel() for p in params])
        whole = [place for place, (p, _) in enumerate(parts) if p.numel() < DENSE_BELOW or p.is_complex()]
        if whole:
            sums = comm.all_reduce(torch.cat([parts[place][1] for place in whole])).wait() / comm.size
            for place, total in zip(whole, sums.split([parts[place][1].numel() for place in whole]), strict=True):
                out[place].copy_(total)
        for place, (param, grad) in enumerate(parts):
            if place not in whole:
                out[place].copy_(self._shortened(param, grad, comm, step))
        return mean

    def _shortened(self, param: Tensor, grad: Tensor, comm: Comm, step: Step) -> Tensor:
        unit = self._units.get(id(param))
        if unit is None:
            name = f"parameter {len(self._units)} of shape {list(param.shape)}"
            unit = self._units[id(param)] = DenseBucket([(name, torch.nn.Parameter(param.detach()))], self._reducer)
        unit.flat.copy_(grad)
        average, _ = unit.shortened(comm, torch.ones(1), step)
        unit.watch.tell()
        return average
