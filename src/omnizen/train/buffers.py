"""Running statistics after a step: averaged where they are means, taken from rank 0 where they count."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from omnizen.protocols import Comm
from omnizen.train.rows import real
from omnizen.types import Layout


class Buffers:
    """The buffers of a model that its forward changes, in one flat float64 message.

    BatchNorm's running means and variances are averaged, weighted like the gradients (which makes the running mean
    that of the union batch); every other buffer is taken from rank 0, as DistributedDataParallel does.
    Whole numbers of 8 bytes travel in two halves, which float64 holds exactly. A forward may write into a buffer or
    put a new tensor in its place; one whose new tensor has another shape than at the start (a cache that grows) is
    each rank's own from then on.
    """

    def __init__(self, model: nn.Module) -> None:
        places: dict[int, tuple[bool, str, nn.Module, str]] = {}  # a shared buffer once, under its first name
        for prefix, module in model.named_modules():
            for key, buffer in module.named_buffers(recurse=False):
                averaged = isinstance(module, _BatchNorm) and buffer.is_floating_point()
                places.setdefault(id(buffer), (not averaged, f"{prefix}.{key}", module, key))
        ordered = sorted(places.values(), key=lambda place: place[0])  # the averaged ones first
        self._places = [(module, key) for _, _, module, key in ordered]
        self.layout = Layout.of([(name, _shape(module.get_buffer(key))) for _, name, module, key in ordered])
        self._averaged = sum(not place[0] for place in ordered)
        self._seen = self._versions()
        self._late: Tensor | None = None

    def _now(self) -> list[Tensor | None]:
        """Return each buffer as it is now, None where it has another shape or is gone."""
        found: list[Tensor | None] = []
        for (module, key), slot in zip(self._places, self.layout.slots, strict=True):
            buffer = module._buffers.get(key)
            found.append(buffer if buffer is not None and _shape(buffer) == slot.shape else None)
        return found

    def _versions(self) -> list[tuple[weakref.ref[Tensor] | None, int]]:
        return [(None, 0) if b is None else (weakref.ref(b), b._version) for b in self._now()]

    def changed(self) -> bool:
        """Return whether any buffer was written to or replaced since the last exchange."""
        pairs = zip(self._versions(), self._seen, strict=True)  # a tensor has one plain reference, always the same
        return any(ref is not seen or version != at for (ref, version), (seen, at) in pairs)

    def reduce(self, comm: Comm, share: float) -> None:
        """Exchange (in the wire thread); only called when some rank's buffers changed."""
        flat = self.packed(share / comm.size, first=comm.rank == 0).to(comm.device)
        self._late = comm.all_reduce(flat).wait()

    def packed(self, share: float, *, first: bool) -> Tensor:
        """Return this rank's buffers as they are added up over ranks, float64; empty where there are none.

        Args:
            share: what averaged ones are multiplied by.
            first: whether the others are taken from this rank.
        """
        flat = torch.zeros(self.layout.numel + len(self._places), dtype=torch.float64)
        for i, (buffer, slot) in enumerate(zip(self._now(), self.layout.slots, strict=True)):
            weight = share if i < self._averaged else float(first)
            if buffer is not None and weight:
                self.layout.view(flat, slot).copy_(_numbers(buffer.detach())).mul_(weight)
                flat[self.layout.numel + i] = 1.0
        return flat

    def take_sum(self, total: Tensor) -> None:
        """Write what ``packed(1.0, ...)`` of several ranks adds up to."""
        for i, slot in enumerate(self.layout.slots):  # one whose bringer changed meanwhile came twice
            self.layout.view(total, slot).div_(max(1.0, float(total[self.layout.numel + i])))
        self._late = total
        self.finish()

    def finish(self) -> None:
        """Write what came (in the user's thread, after backward)."""
        if self._late is not None:
            held = self._late[self.layout.numel :].tolist()
            for buffer, slot, ranks in zip(self._now(), self.layout.slots, held, strict=True):
                if buffer is not None and ranks:
                    value = self.layout.view(self._late, slot)
                    _write(buffer, value)
            self._late = None
        self._seen = self._versions()


LONG = (torch.int64, torch.uint64)
"""Types with more digits than float64."""


def _shape(buffer: Tensor) -> torch.Size:
    """Return the shape of a buffer's numbers."""
    return torch.Size((*buffer.shape, 2)) if buffer.dtype in LONG else real(buffer).shape


def _numbers(buffer: Tensor) -> Tensor:
    """Return a buffer's numbers as float64 holds them: complex ones in two parts, long whole ones in two halves."""
    if buffer.dtype not in LONG:
        return real(buffer)
    bits = buffer.view(torch.int64)
    return torch.stack([bits >> 32, bits & 0xFFFFFFFF], -1)


def _write(buffer: Tensor, numbers: Tensor) -> None:
    if buffer.dtype in LONG:
        halves = numbers.round().to(torch.int64)
        buffer.view(torch.int64).copy_((halves[..., 0] << 32) + halves[..., 1])
    else:
        fraction = buffer.is_floating_point() or buffer.is_complex()
        real(buffer).copy_(numbers if fraction else numbers.round())
