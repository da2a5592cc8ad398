"""Which rows of a dense matrix hold anything: embeddings' dense gradients are mostly zero rows."""

from __future__ import annotations

from torch import Tensor

from omnizen.kernels.spec import Kernel


def _nonzero_rows(matrix: Tensor) -> Tensor:
    return (matrix != 0).any(1).nonzero().view(-1)


nonzero_rows: Kernel[[Tensor], Tensor] = Kernel(
    "nonzero_rows", _nonzero_rows, cpu="omnizen.kernels.cpu.nonzero_rows:nonzero_rows"
)
"""``nonzero_rows(matrix [r, width], floating) -> [k] int64``; NaN counts as non-zero, -0.0 does not."""
