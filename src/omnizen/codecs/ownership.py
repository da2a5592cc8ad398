"""Which rows each rank owns, and where a row stands among its owner's rows: Zen's offline index sets."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from omnizen.errors import UserError, nearest
from omnizen.kernels.owner import cyclic_owner, hash_owner
from omnizen.kernels.partition import Divided, divide, hash_divide

Partition = Literal["hash", "cyclic"]
PARTITIONS: tuple[Partition, ...] = ("hash", "cyclic")
CACHE_BYTES = 256 * 2**20
"""How much the tables of hashed index sets may hold; the one in use is kept even when it alone is larger."""
CHUNK_ROWS = 2**20
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Ownership:
    """A division of ``num_rows`` rows among n ranks that all ranks compute alike.

    Args:
        partition: ``"hash"`` is even whatever the pattern; ``"cyclic"`` (row % n) needs no table.
        num_rows: rows of the tensor.
        n: ranks.
        seed: of the hash.
    """

    partition: Partition
    num_rows: int
    n: int
    seed: int = 0

    def owner(self, rows: Tensor) -> Tensor:
        """Return each row's owner, ``[k]`` int64."""
        return (hash_owner if self.partition == "hash" else cyclic_owner)(rows, self.n, self.seed)

    def divide(self, rows: Tensor, dtype: torch.dtype) -> Divided:
        """Sort rows ``[k]`` int64 by owner; they come back as ``dtype``, int64 or, if they fit, int32."""
        if self.partition == "hash":
            return hash_divide(rows, self.n, self.seed, dtype)
        return divide(rows.to(dtype), self.owner(rows), self.n)

    def num_owned(self, rank: int) -> int:
        """Return how many rows a rank owns, ``|I_j|``."""
        if self.partition == "cyclic":
            return (self.num_rows - rank + self.n - 1) // self.n
        return _tables.get(self, _CPU).counts[rank]

    def position(self, rows: Tensor, rank: int) -> Tensor:
        """Return where each row (``[k]``, all owned by ``rank``) stands in the rank's sorted index set."""
        if self.partition == "cyclic":
            return torch.div(rows, self.n, rounding_mode="floor")
        owned = self._set(rank, rows.device)
        return torch.searchsorted(owned, rows.to(owned.dtype))

    def rows_at(self, positions: Tensor, rank: int) -> Tensor:
        """Return the rows at positions of the rank's sorted index set, ``[k]`` int64."""
        if self.partition == "cyclic":
            return positions * self.n + rank
        return self._set(rank, positions.device)[positions].long()

    def _set(self, rank: int, device: torch.device) -> Tensor:
        table = _tables.get(self, device)
        start = sum(table.counts[:rank])
        return table.rows[start : start + table.counts[rank]]


@dataclass(frozen=True, slots=True)
class _Table:
    rows: Tensor  # [num_rows], sorted by owner, then by row
    counts: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()


class _Tables:
    """Tables by ownership and device, the least recently used dropped first. Shared by a process's ranks."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[Ownership, torch.device], _Table] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, ownership: Ownership, device: torch.device) -> _Table:
        key = ownership, device
        with self._lock:
            if key not in self._held:
                self._held[key] = _table(ownership, device)
            self._held.move_to_end(key)
            while len(self._held) > 1 and sum(t.nbytes for t in self._held.values()) > CACHE_BYTES:
                self._held.popitem(last=False)
            return self._held[key]


def _table(key: Ownership, device: torch.device) -> _Table:
    """Sort the rows by owner, a chunk at a time so that no 8-byte copy of all rows is ever held."""
    small = torch.int32 if key.num_rows <= 2**31 else torch.int64
    by_owner: list[list[Tensor]] = [[] for _ in range(key.n)]
    for start in range(0, key.num_rows, CHUNK_ROWS):
        divided = key.divide(torch.arange(start, min(start + CHUNK_ROWS, key.num_rows)), small)
        for owned, piece in zip(by_owner, divided.rows.split(divided.counts.tolist()), strict=True):
            owned.append(piece)
    pieces = [piece for owned in by_owner for piece in owned]
    counts_by_owner = tuple(sum(piece.numel() for piece in owned) for owned in by_owner)
    sorted_rows = torch.cat(pieces) if pieces else torch.empty(0, dtype=small)
    return _Table(sorted_rows.to(device), counts_by_owner)


_tables = _Tables()


def checked_partition(name: str, who: str) -> Partition:
    """Return a partition's name; raises ``UserError`` when there is no such partition."""
    for known in PARTITIONS:
        if name == known:
            return known
    raise UserError(f"{who}: partition: {nearest(name, PARTITIONS)}")
