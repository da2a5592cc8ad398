"""Gradients that are no numbers: seen before a lossy scheme could hide them, and told by name."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from omnizen.errors import NotFiniteWarning
from omnizen.types import Layout, Step


class FiniteWatch:
    """Looks for NaN and infinity in one bucket; each parameter is told of once."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._waiting: list[str] = []

    def odd(self, flat: Tensor, layout: Layout) -> Tensor:
        """Return 1 for each tensor of the bucket that holds something not finite, ``[slots]`` float32.

        One sum tells in the usual case; only where it is not finite (it may overflow too) is each tensor looked at.
        """
        if bool(torch.isfinite(flat.sum())):
            return torch.zeros(len(layout.slots))
        found = [not bool(torch.isfinite(layout.view(flat, slot)).all()) for slot in layout.slots]
        return torch.tensor(found, dtype=torch.float32)

    def note(self, ranks: Tensor, layout: Layout, step: Step) -> None:
        """Keep what is to be told.

        Args:
            ranks: ``odd`` of each rank, ``[ranks, slots]``.
        """
        for place, slot in enumerate(layout.slots):
            where = ranks[:, place].nonzero().view(-1).tolist()
            if where:
                self._note(slot.name, where, step, ", and no residual or momentum was changed")

    def look(self, name: str, rows: Tensor, rank: int, step: Step) -> None:
        """Look at this rank's own rows of a table, whose average will show the others what it holds."""
        if not bool(torch.isfinite(rows.sum())) and not bool(torch.isfinite(rows).all()):
            self._note(name, [rank], step, "")

    def _note(self, name: str, where: list[int], step: Step, more: str) -> None:
        if step.loss_scale != 1.0 or name in self._told:
            return  # a scaled loss overflows now and then; its scaler leaves the step out
        self._told.add(name)
        of = f"rank {where[0]}" if len(where) == 1 else f"ranks {', '.join(map(str, where))}"
        self._waiting.append(
            f"{name}: the gradient of {of} holds NaN or infinity at step {step.n}; the average of this step holds "
            f"it too{more}"
        )

    def tell(self) -> None:
        """Warn of what was noted, in the user's thread."""
        waiting, self._waiting = self._waiting, []
        for text in waiting:
            warnings.warn(text, NotFiniteWarning, stacklevel=2)
