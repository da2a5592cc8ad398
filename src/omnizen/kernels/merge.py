"""Sum rows of several sorted lists into one sorted list. Work follows the rows that exist, never the tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from omnizen.kernels.spec import Kernel

Lists = Sequence[Tensor]


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type that sums of a type are kept in: float32 for 16-bit floats, else the type itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _merge(indices: Lists, values: Lists) -> tuple[Tensor, Tensor]:
    dtype = sum_dtype(values[0].dtype)
    rows, where = torch.unique(torch.cat(list(indices)).long(), return_inverse=True)
    total = torch.zeros(rows.numel(), values[0].shape[1], dtype=dtype, device=rows.device)
    return rows, total.index_add_(0, where, torch.cat([v.to(dtype) for v in values]))


merge: Kernel[[Lists, Lists], tuple[Tensor, Tensor]] = Kernel(
    "merge", _merge, cpu="omnizen.kernels.cpu.merge:merge"
)
"""``merge(indices, values) -> (rows [u] int64, sums [u, width])``.

List i has strictly ascending ``indices[i]`` ``[k_i]`` and ``values[i]`` ``[k_i, width]``; rows that several lists
hold are added in list order, so equal lists give equal bits. 16-bit values are summed, and returned, in float32.
"""
