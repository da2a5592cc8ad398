"""Wide and deep on one-hot flights: the shape of a click model, with row-sparse tables (arXiv:1606.07792)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from omnizen.bench.cases.case import Batch, Case, shuffled
from omnizen.data.flights import Flights

LEARNING_RATE = 1.0
HELD_OUT = 0.2
_SPLIT_SEED = 0


class WideAndDeep(nn.Module):
    """A weight for each column, beside a network on a vector for each column.

    Args:
        num_columns: of the one-hot matrix.
        num_fields: columns that are set in each row.
        width: of a column's vector.
        sparse: whether the tables' gradients are sparse tensors.
    """

    def __init__(self, num_columns: int, num_fields: int, width: int, *, sparse: bool) -> None:
        super().__init__()
        self.wide = nn.Embedding(num_columns, 1, sparse=sparse)
        self.table = nn.Embedding(num_columns, width, sparse=sparse)
        nn.init.zeros_(self.wide.weight)
        nn.init.normal_(self.table.weight, std=0.05)
        self.deep = nn.Sequential(nn.Linear(num_fields * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, columns: Tensor) -> Tensor:
        """Return ``[batch]`` logits for ``[batch, num_fields]`` int64 columns."""
        linear = self.wide(columns).sum(1).squeeze(1)
        return linear + self.deep(self.table(columns).flatten(1)).squeeze(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class FlightsCase(Case):
    """Late or not, from one-hot columns; a fifth of the rows is held out.

    Args:
        data: the flights.
        width: of a column's vector.
    """

    name: ClassVar[str] = "flights"
    unit: ClassVar[Literal["tokens", "samples"]] = "samples"

    data: Flights
    width: int = 16
    _order: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        order = np.random.default_rng(_SPLIT_SEED).permutation(len(self.data.late))
        object.__setattr__(self, "_order", order)

    @property
    def num_train(self) -> int:
        """Rows to train on."""
        return len(self._order) - int(HELD_OUT * len(self._order))

    def make_model(self, *, sparse: bool, seed: int) -> nn.Module:
        """Return a new model."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return WideAndDeep(self.data.num_columns, self.data.columns.shape[1], self.width, sparse=sparse)

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return plain SGD, which does the same for sparse and dense gradients."""
        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def batch_at(self, step: int, *, rank: int, size: int, batch: int, seed: int) -> Batch:
        """Return columns ``[batch, num_fields]`` int64 and labels ``[batch]`` float32."""
        chosen = shuffled(step, rank=rank, size=size, batch=batch, seed=seed, total=self.num_train)
        return self._rows(self._order[chosen.numpy()])

    def _rows(self, rows: NDArray[np.int64]) -> Batch:
        columns = torch.from_numpy(self.data.columns[rows].astype(np.int64))
        return columns, torch.from_numpy(self.data.late[rows].astype(np.float32))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean logistic loss of a row, in nats."""
        columns, late = batch
        return binary_cross_entropy_with_logits(model(columns), late)

    def reads(self, batch: Batch) -> dict[str, Tensor]:
        """Return the columns that are set; both tables look them up."""
        columns, _ = batch
        return {"wide.weight": columns, "table.weight": columns}

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Return the area under the ROC curve on the held-out rows."""
        columns, late = self._rows(self._order[self.num_train :])
        scores = torch.cat([model(part) for part in columns.split(4096)])
        return auc(scores.numpy(), late.numpy())


def auc(scores: NDArray, positive: NDArray) -> float:
    """Return the chance that a positive scores higher than a negative, ties counting half.

    Args:
        scores: ``[n]``.
        positive: ``[n]``, 1 or 0, at least one of each.

    Example:
        >>> auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([0, 0, 1, 1]))
        0.875
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place]
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    above = rank[positive > 0].sum() - num_positive * (num_positive + 1) / 2
    return float(above / (num_positive * num_negative))


def flights_case() -> FlightsCase:
    """Return wide and deep on the flights.

    Raises:
        UserError: the data cannot be had.
    """
    from omnizen.data.sets import find

    return FlightsCase(data=find("flights").load())
