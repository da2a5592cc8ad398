"""Count sketches: each element is added, with a random sign, to one counter in each of a few rows."""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.kernels.owner import MASK32, mix32
from omnizen.kernels.spec import Kernel

GOLDEN = 0x9E3779B9


def row_seed(seed: int, row: int) -> int:
    """Return the seed of one row's hash."""
    return int(mix32(torch.tensor((seed + (row + 1) * GOLDEN) & MASK32)))


def _places(numel: int, columns: int, seed: int, row: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return each element's column and sign: high bits of its hash choose the one, the lowest bit the other."""
    elements = torch.arange(numel, device=device)
    high = mix32((elements >> 32) ^ row_seed(seed, row))
    mixed = mix32((elements & MASK32) ^ high)
    return (mixed * columns) >> 32, 1 - 2 * (mixed & 1)


def _sketch(flat: Tensor, rows: int, columns: int, seed: int) -> Tensor:
    table = torch.zeros(rows, columns, dtype=flat.dtype, device=flat.device)
    for row in range(rows):
        column, sign = _places(flat.numel(), columns, seed, row, flat.device)
        table[row].index_add_(0, column, flat * sign)
    return table


def _guesses(table: Tensor, numel: int, seed: int) -> Tensor:
    rows, columns = table.shape
    found = []
    for row in range(rows):
        column, sign = _places(numel, columns, seed, row, table.device)
        found.append(table[row][column] * sign)
    return torch.stack(found)


def _median_of(table: Tensor, numel: int, seed: int) -> Tensor:
    return _guesses(table, numel, seed).median(0).values


def _mean_of(table: Tensor, numel: int, seed: int) -> Tensor:
    return _guesses(table, numel, seed).mean(0)


sketch: Kernel[[Tensor, int, int, int], Tensor] = Kernel("sketch", _sketch, cpu="omnizen.kernels.cpu.sketch:sketch")
"""``sketch(flat [numel], rows, columns, seed) -> [rows, columns]``, linear in ``flat``."""

median_of: Kernel[[Tensor, int, int], Tensor] = Kernel(
    "median_of", _median_of, cpu="omnizen.kernels.cpu.sketch:median_of"
)
"""``median_of(table, numel, seed) -> [numel]``: of each element's guesses, the (lower) median."""

mean_of: Kernel[[Tensor, int, int], Tensor] = Kernel("mean_of", _mean_of)
"""``mean_of(table, numel, seed) -> [numel]``: the mean of each element's guesses, which is linear in the table."""
