"""What a lazily pulled table moves: gradients to owners, and rows to those who will read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omnizen import catalog_rows
from omnizen.codecs.coo import index_bytes, row_bytes, value_bytes
from omnizen.reducers import wire_cost
from omnizen.types import Sparsity, Traffic

LAZY = catalog_rows.LAZY
SUMMARY = catalog_rows.LAZY_SUMMARY


@dataclass(frozen=True, slots=True)
class LazyPull:
    """Traffic of ``train.lazy``, for the planner: at most ``2 (n - 1) / n d M`` bytes each way.

    An upper bound: it counts every row of the coming batch as changed. That is what a long run tends to where
    rows are read again after others changed them; rows that only this rank uses are sent less often.
    """

    values: str = "float32"
    name: ClassVar[str] = LAZY
    exact: ClassVar[bool] = True

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at a rank."""
        share = (size - 1) / size * pattern.rows
        pushed = share * (row_bytes(pattern, self.values) + index_bytes(pattern.num_rows)) + 2 * (size - 1)
        pulled = share * (value_bytes(pattern, self.values) + 1 / 8)
        return wire_cost.scheduled(pushed, pushed, 4, size) + wire_cost.scheduled(pulled, pulled, 2, size)
