"""What a checkpoint keeps of the user's own objects: schedulers, scalers, averages of weights."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from omnizen.errors import UserError, nearest, of_user_code
from omnizen.train.voice import say

Extra = Mapping[str, Any]
"""Objects with ``state_dict`` and ``load_state_dict`` (``Stateful`` of torch.distributed.checkpoint), by a name."""


def states(extra: Extra | None) -> dict[str, Any]:
    """Return the state of each object.

    Raises:
        UserError: one has no state, or one that could not be read back.
    """
    kept: dict[str, Any] = {}
    for name, each in _checked(extra).items():
        buffer = io.BytesIO()
        try:
            kept[name] = each.state_dict()
            torch.save(kept[name], buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except (pickle.PickleError, AttributeError, TypeError) as error:
            raise UserError(
                f"extra[{name!r}]: the state of this {type(each).__name__} holds what cannot be read back safely "
                f"({str(error).splitlines()[0]}); keep numbers, texts, tensors and containers of them in it"
            ) from error
    return kept


def check_names(kept: Mapping[str, Any], extra: Extra | None) -> None:
    """Refuse to forget a state that was saved, and to wait for one that was not.

    Raises:
        UserError: names the object.
    """
    given = _checked(extra)
    for name in kept:
        if name not in given:
            raise UserError(
                f"the checkpoint holds the state of {name!r}, which would be lost: run.load(folder, "
                f"extra={{{name!r}: ...}}) with the object that gets it"
            )
    for name in given:
        if name not in kept:
            raise UserError(f"extra: the checkpoint holds no such state: {nearest(name, kept)}")


def restore(kept: Mapping[str, Any], extra: Extra | None) -> None:
    """Give each object its state back.

    Raises:
        UserError: one does not take it.
    """
    for name, each in _checked(extra).items():
        try:
            each.load_state_dict(kept[name])
        except Exception as error:  # code of the user's own
            raise UserError(
                f"extra[{name!r}]: this {type(each).__name__} does not take its saved state: {of_user_code(error)}"
            ) from error


def schedule_left_out(optimizers: Sequence[Optimizer], kept: Mapping[str, Any]) -> None:
    """Say so when step sizes follow a schedule and nothing is kept beside what a checkpoint holds anyway."""
    scheduled = any("initial_lr" in group for each in optimizers for group in each.param_groups)
    if scheduled and not kept:
        say(
            "run.save(): the optimizer's step size follows a scheduler, whose place is not saved unless you give "
            'it: run.save(folder, extra={"scheduler": scheduler}), and the same to run.load()'
        )


def _checked(extra: Extra | None) -> Extra:
    if extra is None:
        return {}
    if not isinstance(extra, Mapping) or not all(isinstance(name, str) for name in extra):
        raise UserError(f'extra: objects by name, such as {{"scheduler": scheduler}}, got {extra!r}')
    for name, each in extra.items():
        if not callable(getattr(each, "state_dict", None)) or not callable(getattr(each, "load_state_dict", None)):
            raise UserError(f"extra[{name!r}] has no state_dict() and load_state_dict(): {type(each).__name__}")
    return extra
