"""States of wrapped reducers inside their wrapper's, and states as plain dictionaries for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnizen.types import State


def nested(state: State, name: str) -> State:
    """Return the state with every key put below a name, to be kept inside a wrapper's state."""
    return State(
        {f"{name}.{key}": tensor for key, tensor in state.slots.items()},
        {f"{name}.{key}": number for key, number in state.scalars.items()},
        {f"{name}.{key}": tensor for key, tensor in state.extra.items()},
    )


def inner(state: State, name: str) -> State:
    """Return what a wrapper keeps below a name, as the wrapped reducer knows it."""
    prefix = f"{name}."
    return State(
        {key.removeprefix(prefix): tensor for key, tensor in state.slots.items() if key.startswith(prefix)},
        {key.removeprefix(prefix): number for key, number in state.scalars.items() if key.startswith(prefix)},
        {key.removeprefix(prefix): tensor for key, tensor in state.extra.items() if key.startswith(prefix)},
    )


def joined(*states: State) -> State:
    """Return one state with the keys of all."""
    whole = State()
    for state in states:
        whole.slots.update(state.slots)
        whole.scalars.update(state.scalars)
        whole.extra.update(state.extra)
    return whole


def state_dict(state: State) -> dict[str, Any]:
    """Return a state as dictionaries of tensors and numbers, which ``torch.load(weights_only=True)`` reads."""
    return {"slots": dict(state.slots), "scalars": dict(state.scalars), "extra": dict(state.extra)}


def from_state_dict(saved: Mapping[str, Any]) -> State:
    """Return the state that ``state_dict`` saved."""
    return State(dict(saved["slots"]), dict(saved["scalars"]), dict(saved["extra"]))
