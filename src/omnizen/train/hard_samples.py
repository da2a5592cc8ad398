"""Which samples are hard: the smallest loss that any rank noted for each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from omnizen.errors import UserError
from omnizen.protocols import Comm


class Losses:
    """Losses of the samples of a data set, infinity where none was noted.

    ``agree`` gives all ranks the element-wise minimum of what they noted, as an all-reduce of whole tables with MIN
    would; only what is new travels.

    Args:
        samples: of the data set.

    Reference: Lim et al., "Biased Local SGD for Efficient Deep Learning on Heterogeneous Systems",
    arXiv:2508.08540.
    """

    def __init__(self, samples: int) -> None:
        self.known = torch.full((samples,), float("inf"))
        self._new: list[tuple[Tensor, Tensor]] = []

    def note(self, indices: Tensor, losses: Any) -> None:
        """Note the losses of a batch.

        Args:
            indices: of its samples ``[batch]``.
            losses: one for each ``[batch]``; NaN counts as infinite.

        Raises:
            UserError: not one loss for each sample.
        """
        values = torch.as_tensor(losses).detach()
        if values.shape != indices.shape:
            raise UserError(
                f"run.note_losses() takes one loss for each of the batch's {len(indices)} samples, in their order "
                f"(reduction='none'), got a tensor of shape {list(values.shape)}"
            )
        values = values.to("cpu", torch.float32)
        self._new.append((indices, torch.where(values.isnan(), float("inf"), values)))

    def agree(self, comm: Comm) -> None:
        """Give what is new to all ranks (collective)."""
        empty = (torch.empty(0, dtype=torch.int64), torch.empty(0))
        indices, values = map(torch.cat, zip(*(self._new or [empty]), strict=True))
        self._new.clear()
        parts = [indices.to(comm.device), values.to(comm.device)]
        for theirs in [parts] if comm.size == 1 else comm.all_gather(parts).wait():
            self.known.scatter_reduce_(0, theirs[0].cpu(), theirs[1].cpu(), "amin")

    def state_dict(self) -> dict[str, Any]:
        """Return what is known, and what this rank noted since."""
        return {"known": self.known.clone(), "new": [list(pair) for pair in self._new]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.known = state["known"].clone()
        self._new = [(indices, values) for indices, values in state["new"]]
