"""One kernel, several implementations: which one runs is explicit, recorded and can be asked for."""

from __future__ import annotations

import importlib
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

from omnizen.errors import UserError, nearest

P = ParamSpec("P")
R = TypeVar("R")
Impl = Literal["auto", "reference", "cpu", "gpu"]
IMPLS: tuple[Impl, ...] = ("auto", "reference", "cpu", "gpu")

_used: Counter[tuple[str, str]] = Counter()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Kernel(Generic[P, R]):
    """An inner loop with one signature and up to three implementations.

    ``auto`` takes the implementation for the first tensor's device, and the reference (plain torch, which runs
    on any device) where there is none. Asking by name for one that does not exist is an error.

    Args:
        name: what the records call it.
        reference: plain torch, the definition of what is right.
        cpu: ``"module:function"`` of the numba twin, imported when first used.
        gpu: ``"module:function"`` of the Triton twin, imported when first used.

    Raises:
        UserError: an implementation that this kernel does not have.
    """

    name: str
    reference: Callable[P, R]
    cpu: str | None = None
    gpu: str | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the implementation for the device of the first tensor."""
        return self.run("auto", *args, **kwargs)

    def run(self, impl: Impl, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the implementation that is named."""
        if impl not in IMPLS:
            raise UserError(f"implementation of kernel {self.name!r}: {nearest(impl, IMPLS)}")
        chosen = self.choose(_device_of(args)) if impl == "auto" else impl
        with _lock:
            _used[self.name, chosen] += 1
        return self._function(chosen)(*args, **kwargs)

    def choose(self, device: torch.device) -> Impl:
        """Return what ``auto`` takes on a device."""
        if device.type == "cpu":
            return "cpu" if self.cpu else "reference"
        return "gpu" if self.gpu and device.type == "cuda" else "reference"

    def _function(self, impl: Impl) -> Callable[P, R]:
        if impl == "reference":
            return self.reference
        path = self.cpu if impl == "cpu" else self.gpu
        if path is None:
            have = [name for name in IMPLS[1:] if name == "reference" or getattr(self, name)]
            raise UserError(f"kernel {self.name!r} has no {impl!r} implementation; it has: {', '.join(have)}")
        module, function = path.split(":")
        found: Callable[P, R] = getattr(importlib.import_module(module), function)
        return found


def used() -> dict[str, dict[str, int]]:
    """Return how often each implementation of each kernel ran in this process, for the run's record."""
    with _lock:
        counts = dict(_used)
    table: dict[str, dict[str, int]] = {}
    for (kernel, impl), times in counts.items():
        table.setdefault(kernel, {})[impl] = times
    return table


def forget_used() -> None:
    """Start counting anew."""
    with _lock:
        _used.clear()


def _device_of(args: tuple[Any, ...]) -> torch.device:
    for arg in args:
        first = arg[0] if isinstance(arg, (list, tuple)) and arg else arg
        if isinstance(first, Tensor):
            return first.device
    return torch.device("cpu")
