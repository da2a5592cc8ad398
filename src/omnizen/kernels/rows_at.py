"""Some rows of a matrix, by torch's fastest way."""

from __future__ import annotations

from torch import Tensor


def rows_at(values: Tensor, places: Tensor) -> Tensor:
    """Return ``values[places]`` of ``values`` ``[r, width]`` and ``places`` ``[k]`` int64, several times faster."""
    if values.shape[1] == 1:
        return values.reshape(-1).index_select(0, places).view(-1, 1)
    return values.index_select(0, places)
