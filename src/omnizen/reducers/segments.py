"""The tensors of a flat contribution: methods that work tensor by tensor share one message for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from omnizen.types import Contribution, Dense, Layout, Slot, Sparse, Step


def segments(x: Contribution, step: Step) -> Iterator[tuple[Contribution, Step]]:
    """Yield each tensor of a contribution, with a step that bears its name.

    A flat buffer with a layout is taken apart into its slots, each in its own shape; anything else is one tensor.
    What lies behind the last slot belongs to nobody and is left out.

    Example:
        >>> flat = Dense(torch.arange(5.0), Layout.of([("a", (2,)), ("b", (3, 1))]))
        >>> [(part.values.shape, at.name) for part, at in segments(flat, Step(0))]
        [(torch.Size([2]), 'a'), (torch.Size([3, 1]), 'b')]
    """
    if isinstance(x, Sparse) or x.layout is None:
        yield x, step
        return
    flat = x.values.reshape(-1)
    for slot in x.layout.slots:
        yield Dense(x.layout.view(flat, slot)), step.named(slot.name)


def slots(x: Dense) -> tuple[Slot, ...]:
    """Return where the tensors of a dense contribution lie in its flat order."""
    whole = Layout.of([("", x.values.shape)])
    return whole.slots if x.layout is None else x.layout.slots


def joined_values(x: Contribution, parts: Sequence[Contribution]) -> Contribution:
    """Return what ``segments`` took apart as one contribution of x's shape and layout."""
    if isinstance(x, Sparse) or x.layout is None:
        (whole,) = parts
        return whole
    flat = torch.cat([part.values.reshape(-1) for part in parts])
    missing = x.values.numel() - flat.numel()
    if missing:
        flat = torch.cat([flat, flat.new_zeros(missing)])
    return Dense(flat.view(x.values.shape), x.layout)
