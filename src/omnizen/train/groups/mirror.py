"""The user's optimizer, made again over slices of the parameters: only for those that work element by element."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
    SparseAdam,
)

from omnizen.errors import UserError
from omnizen.train.groups.layout import Slice
from omnizen.train.pulls import ROW_WISE

ELEMENTWISE = (SGD, Adam, AdamW, SparseAdam, Adagrad, RMSprop, Adadelta, Adamax, NAdam, RAdam, Rprop, ASGD)
_AT_THE_START = ("initial_accumulator_value",)
"""Settings that a constructor uses. All others come with the first push: constructors refuse momentum below 0."""


def check_elementwise(optimizers: Sequence[Optimizer]) -> None:
    """Refuse optimizers that cannot be cut into slices.

    Raises:
        UserError: says which can.
    """
    for optimizer in optimizers:
        if type(optimizer) not in ELEMENTWISE:
            names = ", ".join(sorted(each.__name__ for each in ELEMENTWISE))
            raise UserError(
                f"compute groups keep the optimizer on servers, each over a part of the weights, so it must work "
                f"element by element; {type(optimizer).__name__} is not known to. Use one of {names}"
            )


def settings_text(optimizers: Sequence[Optimizer]) -> str:
    """Return all settings of all parameter groups, for ``apply_settings`` at a server."""
    return json.dumps([[_settings(group) for group in each.param_groups] for each in optimizers])


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        k: v.item() if isinstance(v, Tensor) and v.numel() == 1 else v for k, v in group.items() if k != "params"
    }
    return {k: v for k, v in found.items() if v is None or isinstance(v, bool | int | float | str | tuple | list)}


def apply_settings(mirrors: Mapping[int, Optimizer], text: str) -> None:
    """Give mirrors, by the number of the optimizer that each mirrors, its settings."""
    found = json.loads(text)
    for number, optimizer in mirrors.items():
        for group, settings in zip(optimizer.param_groups, found[number], strict=True):
            group.update({k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()})


def mirror(optimizer: Optimizer, groups: Sequence[Sequence[Parameter]]) -> Optimizer:
    """Make an optimizer of the same kind over other parameters, with as many groups; settings come with pushes."""
    fixed = {k: v for k, v in optimizer.defaults.items() if k in _AT_THE_START}
    return type(optimizer)([{"params": list(params)} for params in groups], **fixed)


def changes_all_rows(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    """Return whether rows without a gradient change too, when some rows have one."""
    zero = () if type(optimizer) is SparseAdam else ROW_WISE.get(type(optimizer))
    return zero is None or any(group.get(key) for key in zero)


def cut_state(state: Mapping[str, Any], shape: torch.Size, piece: Slice) -> dict[str, Any]:
    """Return the part of a parameter's optimizer state that belongs to a slice of it."""
    found: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            whole = value.shape == shape and name != "step"
            found[name] = (piece.of(value) if whole else value.detach()).cpu().clone()
        else:
            found[name] = value
    return found


def join_states(states: Sequence[tuple[Slice, Mapping[str, Any]]], param: Tensor) -> dict[str, Any]:
    """Return a parameter's optimizer state from that of all its slices: the other way round.

    What is one number (a count of steps) is taken from the slice that has most.
    """
    found: dict[str, Any] = {}
    for piece, state in states:
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == piece.shape and name != "step":
                whole = found.setdefault(name, torch.zeros(param.shape, dtype=value.dtype, device=param.device))
                piece.of(whole).copy_(value)
            else:
                held = found.get(name)
                found[name] = value if held is None or value is None else max(held, value)
    return found
