"""Inputs that break careless methods: each has broken one in the field."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from omnizen.errors import UserError
from omnizen.types import Contribution, Dense, Packed, Payload, Sparse

NUM_ROWS = 40
FINITE = ("plain", "mixed signs", "all positive", "all zero", "one element", "huge", "denormal", "non-contiguous")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def matrices() -> dict[str, Tensor]:
    """Return float32 matrices ``[rows, width]`` by name."""
    plain = torch.randn(12, 3, generator=torch.Generator().manual_seed(7))
    broken = plain.clone()
    broken[0, 0], broken[3, 1], broken[5, 2] = float("nan"), float("inf"), float("-inf")
    return {
        "plain": plain,
        "mixed signs": torch.tensor([[1.0, -1.0], [2.0, -2.0]]),
        "all positive": plain.abs() + 0.1,
        "all zero": torch.zeros(4, 3),
        "one element": torch.tensor([[-3.0]]),
        "huge": plain * 1e38,
        "denormal": plain * 1e-41,
        "non-contiguous": torch.cat([plain, plain], 1)[:, ::2],
        "not finite": broken,
        "empty": torch.zeros(0, 3),
    }


def payloads(kind: type[Payload]) -> dict[str, Payload]:
    """Return payloads of a kind by name; the names in ``FINITE`` have finite float32 values.

    Raises:
        UserError: for packed payloads, which only the codec that made them can read.
    """
    if kind is Packed:
        raise UserError("a codec of packed payloads is checked behind the codec that makes them: first | second")
    whole: dict[str, Tensor] = matrices()
    whole |= {str(dtype).removeprefix("torch."): whole["plain"].to(dtype) for dtype in DTYPES}
    if kind is Dense:
        return {name: Dense(matrix) for name, matrix in whole.items()}
    return {name: Sparse(_rows(matrix.shape[0], 0), matrix, NUM_ROWS) for name, matrix in whole.items()}


def _rows(k: int, rank: int) -> Tensor:
    """Return k ascending rows, row 0 among them on rank 0."""
    others = torch.randperm(NUM_ROWS - 1, generator=torch.Generator().manual_seed(rank)) + 1
    first = torch.zeros(1, dtype=torch.int64)
    return torch.cat([first, others] if rank == 0 else [others, first])[:k].sort().values


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have the same type, shape and bits, all NaN being alike."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    return bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())


Sample = Callable[[int], Contribution]
"""Gives each rank its contribution."""


def contributions(kind: type[Contribution]) -> dict[str, Sample]:
    """Return what ranks may contribute in one reduction, by name."""

    def values(rank: int, k: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        rng = torch.Generator().manual_seed(100 + rank)
        return torch.randn(k, width, generator=rng, dtype=torch.float64).to(dtype)

    def make(rank: int, matrix: Tensor) -> Contribution:
        return Dense(matrix) if kind is Dense else Sparse(_rows(matrix.shape[0], rank), matrix, NUM_ROWS)

    def broken(rank: int) -> Contribution:
        matrix = values(rank, 12, 3)
        matrix[rank % 12, 0] = (float("nan"), float("inf"), float("-inf"))[rank % 3]
        return make(rank, matrix)

    samples: dict[str, Sample] = {
        "plain": lambda rank: make(rank, values(rank, 12, 3)),
        "matrix": lambda rank: make(rank, values(rank, 24, 32)),
        "one column": lambda rank: make(rank, values(rank, 5, 1)),
        "non-contiguous": lambda rank: make(rank, values(rank, 12, 6)[:, ::2]),
        "float64": lambda rank: make(rank, values(rank, 12, 3, torch.float64)),
        "bfloat16": lambda rank: make(rank, values(rank, 12, 3, torch.bfloat16)),
        "not finite": broken,
    }
    if kind is Sparse:
        samples["only row 0"] = lambda _: Sparse(torch.tensor([0]), torch.ones(1, 2), 1)
        samples["empty on odd ranks"] = lambda rank: make(rank, values(rank, 0 if rank % 2 else 7, 3))
        samples["empty everywhere"] = lambda rank: make(rank, values(rank, 0, 3))
    return samples
