"""What is to be trained, as measuring needs it, and how a user names it on the command line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from omnizen.errors import UserError, nearest, of_user_code


@dataclass(frozen=True, slots=True)
class Subject:
    """What is to be trained.

    Args:
        model: on the device where it will be trained.
        batches: real batches of this rank by batch size; the largest size is the one to train with, and its
            batches are also the steps of which gradients are looked at.
        loss: the loss of a model on a batch, a scalar.
        optimizer: makes the optimizer of a model; only training asks for it.
        loader: what to train on, a DataLoader or any iterable of batches that can be passed over again; only
            training asks for it.
    """

    model: nn.Module
    batches: Mapping[int, Sequence[Any]]
    loss: Callable[[nn.Module, Any], Tensor]
    optimizer: Callable[[nn.Module], Optimizer] | None = None
    loader: Iterable[Any] | None = None

    def __post_init__(self) -> None:
        if not self.batches or not all(size >= 1 and batches for size, batches in self.batches.items()):
            raise UserError("a subject to measure needs at least one batch for each of its batch sizes")

    def run(self, batch: Any) -> None:
        """Do one forward and backward."""
        self.model.zero_grad(set_to_none=True)
        self.loss(self.model, batch).backward()


def load_subject(path: str) -> Subject:
    """Call a user's function and take in what it returns.

    Args:
        path: ``module:function``; modules of the current folder can be named.

    Raises:
        UserError: when there is no such module or function, or it returns something else.
    """
    name, _, function = path.partition(":")
    if not name or not function:
        raise UserError(f"a model is named as MODULE:FUNCTION, got {path!r}")
    if os.getcwd() not in sys.path:  # noqa: PTH109 (sys.path holds strings)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent is None or not f"{name}.".startswith(f"{absent}."):  # it is there, but not all that it imports
            raise UserError(f"{name} cannot be imported: {of_user_code(error)}") from error
        raise UserError(f"there is no module {name!r} here or among the installed packages") from error
    found = getattr(module, function, None)
    if not callable(found):
        functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise UserError(f"{name} has no such function: {nearest(function, functions)}")
    try:
        made = found()
    except (Exception, SystemExit) as error:
        raise UserError(f"{path} failed: {of_user_code(error)}") from error
    if isinstance(made, Subject):
        return made
    parts = made if isinstance(made, tuple) and 3 <= len(made) <= 5 else ()
    if not parts or not isinstance(parts[0], nn.Module) or not _batches(parts[1]):
        names = [type(part).__name__ for part in (made if isinstance(made, tuple) else (made,))]
        got = f"({', '.join(names)})" if isinstance(made, tuple) else names[0]
        raise UserError(
            f"{path} must return (model, {{batch size: [batch, ...]}}, loss), a list for each size, and to train "
            f"also optimizer(model) and a loader; got {got}"
        )
    if not callable(parts[2]):
        raise UserError(f"{path} must return a loss(model, batch) as the third, got {type(parts[2]).__name__}")
    if parts[3:] and parts[3] is not None and not callable(parts[3]):
        raise UserError(
            f"{path} must return a function optimizer(model) as the fourth, got {type(parts[3]).__name__}"
        )
    if parts[4:] and (not isinstance(parts[4], Iterable) or isinstance(parts[4], Iterator)):
        raise UserError(
            f"{path} must return a loader as the fifth that can be passed over again, such as a DataLoader, got "
            f"{type(parts[4]).__name__}"
        )
    return Subject(*parts)


def _batches(given: object) -> bool:
    return isinstance(given, Mapping) and all(
        isinstance(size, int) and isinstance(batches, list) for size, batches in given.items()
    )
