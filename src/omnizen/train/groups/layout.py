"""How parameters are cut into shards, each held by one server: flat ranges of about as many bytes each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

LEAST_BYTES = 64 * 2**10
"""A shard is not cut smaller: each costs a message and its answer in every step."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive rows of one parameter.

    Args:
        param: its number among the trained parameters.
        begin: first element.
        end: element behind the last.
        width: elements of a row; 1 for vectors and scalars.
    """

    param: int
    begin: int
    end: int
    width: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape that a server holds it in: rows of elements, or a vector."""
        numel = self.end - self.begin
        return (numel // self.width, self.width) if self.width > 1 else (numel,)

    def of(self, tensor: Tensor) -> Tensor:
        """Return the slice's part of a tensor that is shaped like its parameter, as a view if possible."""
        return tensor.detach().reshape(-1)[self.begin : self.end].view(self.shape)


Shard = tuple[Slice, ...]


def cut(params: Sequence[Tensor], servers: int) -> list[Shard]:
    """Cut parameters into at most ``servers`` shards of consecutive rows, balanced by bytes.

    Example:
        >>> import torch
        >>> shards = cut([torch.zeros(40000, 3), torch.zeros(5)], 2)
        >>> [[(s.param, s.begin, s.end) for s in shard] for shard in shards]
        [[(0, 0, 60003)], [(0, 60003, 120000), (1, 0, 5)]]
    """
    total = sum(p.numel() * p.element_size() for p in params)
    count = max(1, min(servers, total // LEAST_BYTES))
    ends = [total * (i + 1) // count for i in range(count)]
    shards: list[list[Slice]] = [[] for _ in range(count)]
    passed, at = 0, 0
    for number, param in enumerate(params):
        numel, size = param.numel(), param.element_size()
        width = numel // param.shape[0] if param.dim() > 1 and numel else 1
        begin = 0
        while begin < numel:
            rows = -(-(ends[at] - passed) // (width * size))
            end = numel if at == count - 1 else min(numel, begin + max(0, rows) * width)
            if end > begin:
                shards[at].append(Slice(number, begin, end, width))
                passed += (end - begin) * size
                begin = end
            if at < count - 1 and passed >= ends[at]:
                at += 1
    return [tuple(shard) for shard in shards if shard]


def first_host(shard: int, shards: int, size: int) -> int:
    """Return the rank that holds a shard at the start: hosts are spread over the ranks, the first is rank 0."""
    return shard * size // shards
