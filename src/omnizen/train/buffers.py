"""Running statistics after a step: averaged where they are means, taken from rank 0 where they count."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from omnizen.protocols import Comm
from omnizen.types import Layout


class Buffers:
    """The buffers of a model that its forward changes, in one flat float64 message.

    BatchNorm's running means and variances are averaged, weighted like the gradients (which makes the running mean
    that of the union batch); every other buffer is taken from rank 0, as DistributedDataParallel does.
    float64 holds the counts exactly.
    """

    def __init__(self, model: nn.Module) -> None:
        averaged = {
            id(buffer)
            for module in model.modules()
            if isinstance(module, _BatchNorm)
            for buffer in module.buffers(recurse=False)
            if buffer.is_floating_point()
        }
        named = [(name, b) for name, b in model.named_buffers() if not b.is_complex()]
        named.sort(key=lambda pair: id(pair[1]) not in averaged)  # the averaged ones first; sort keeps the order
        self.buffers: list[Tensor] = [buffer for _, buffer in named]
        self.layout = Layout.of([(name, b.shape) for name, b in named])
        self._averaged = sum(b.numel() for b in self.buffers if id(b) in averaged)
        self._seen = self._versions()
        self._late: Tensor | None = None

    def _versions(self) -> list[int]:
        return [b._version for b in self.buffers]

    def changed(self) -> bool:
        """Return whether any buffer was written to since the last exchange."""
        return self._versions() != self._seen

    def reduce(self, comm: Comm, share: float) -> None:
        """Exchange (in the wire thread); only called when some rank's buffers changed."""
        flat = torch.cat([b.detach().reshape(-1).to(comm.device, torch.float64) for b in self.buffers])
        mean, first = flat[: self._averaged], flat[self._averaged :]
        if share == 0.0:
            mean.zero_()
        mean.mul_(share / comm.size)
        if comm.rank:
            first.zero_()
        self._late = comm.all_reduce(flat).wait()

    def finish(self) -> None:
        """Write what came (in the user's thread, after backward)."""
        if self._late is not None:
            for buffer, slot in zip(self.buffers, self.layout.slots, strict=True):
                value = self.layout.view(self._late, slot)
                buffer.copy_(value if buffer.is_floating_point() else value.round())
            self._late = None
        self._seen = self._versions()
