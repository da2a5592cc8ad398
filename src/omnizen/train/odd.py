"""Gradients that are no numbers, under schemes that hide nothing: whose they were, said before weights change."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from omnizen.errors import NotFinite

LOOKED_AT = 4096
"""Elements that are looked at: a loss that is no number leaves none in the first gradient of a backward pass."""


def is_odd(grad: Tensor | None) -> bool:
    """Return whether a gradient begins with NaN or infinity.

    Example:
        >>> is_odd(torch.tensor([float("nan"), 1.0])), is_odd(torch.ones(2)), is_odd(None)
        (True, False, False)
    """
    if grad is None:
        return False
    values = grad._values() if grad.is_sparse else grad
    width = max(1, values[0].numel()) if values.dim() and len(values) else 1
    head = values[: max(1, LOOKED_AT // width)] if values.dim() else values
    return not bool(torch.isfinite(head).all())


class OddGradients:
    """Remembers which ranks' losses or gradients were no numbers in the last backward pass, on all ranks alike."""

    def __init__(self) -> None:
        self.called: Callable[[int], int] = int
        """Returns what a rank of those that average with each other is called in the run."""
        self.where: Callable[[], str] = str
        """Says which batch is in hand, where that is known."""
        self._found: tuple[int, ...] = ()

    def heard(self, found: tuple[int, ...]) -> None:
        """Take in whose gradients were odd in a backward pass."""
        self._found = found

    def check(self, optimizer: Optimizer, step: int) -> None:
        """Refuse a step that would make the weights no numbers.

        A GradScaler leaves such steps out by itself, and so is never refused one.

        Raises:
            NotFinite: on all ranks; names those it comes from.
        """
        if (
            not self._found or getattr(optimizer, "found_inf", None) is not None
        ):  # the scaler's own, in a fused step
            return
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if all(bool(torch.isfinite(g._values() if g.is_sparse else g).all()) for g in grads):
            return  # the loop has mended them, on all ranks alike
        ranks = [self.called(rank) for rank in self._found]
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        batch = self.where()
        raise NotFinite(
            f"the loss or gradient of {who} holds NaN or infinity at step {step}{batch and f', in {batch}'}; no "
            "weight was changed. Go on from the last checkpoint with smaller steps, or look at that batch"
        )


def check_finite(model: nn.Module) -> None:
    """Refuse weights that nobody can go on from.

    Raises:
        NotFinite: names the first trained parameter with NaN or infinity.
    """
    for name, param in model.named_parameters():
        if param.requires_grad and not bool(torch.isfinite(param.detach()).all()):
            raise NotFinite(f"{name} holds NaN or infinity, so nothing is written: the last good checkpoint stays")
