"""Which rows of a table are up to date where: at their owner always, elsewhere as far as the owner sent them."""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.codecs.ownership import Ownership

ALWAYS = torch.iinfo(torch.int32).max


class OwnedRows:
    """One rank's knowledge of one table; a change is one optimizer step, counted alike on all ranks.

    Costs 4 bytes a row of the table, and one byte a row at all owners together for each rank.

    Args:
        num_rows: rows of the table.
        size: ranks.
        device: of the table.
    """

    def __init__(self, num_rows: int, size: int, rank: int, device: torch.device) -> None:
        self.ownership = Ownership("hash", num_rows, size)
        self.num_rows, self.rank, self.changes = num_rows, rank, 0
        self.own = self.ownership.rows_at(torch.arange(self.ownership.num_owned(rank), device=device), rank)
        self._seen = torch.zeros(num_rows, dtype=torch.int32, device=device)
        self._seen[self.own] = ALWAYS
        self._all_seen = 0
        self._lacks = torch.zeros(size, len(self.own), dtype=torch.bool, device=device)
        self._stirred = torch.zeros(len(self.own), dtype=torch.bool, device=device)

    @property
    def all_current(self) -> bool:
        """Whether every rank has every row's last value; the same answer on all ranks."""
        return self._all_seen == self.changes

    def maybe_old(self, rows: Tensor) -> Tensor:
        """Return those of the rows (``[k]`` int64) that may have changed at their owner since they came here."""
        return rows[:0] if self.all_current else rows[self._seen[rows] < self.changes]

    def changed(self, rows: Tensor) -> None:
        """Note one change of the table; ``rows`` are this rank's own that got a new value."""
        self.changes += 1
        if len(rows):
            positions = self.ownership.position(rows, self.rank)
            self._lacks[:, positions] = True
            self._stirred[positions] = True

    def lacking(self, rank: int, rows: Tensor) -> Tensor:
        """Return the places in ``rows`` (own ones) whose last value a rank lacks, and count them as sent."""
        positions = self.ownership.position(rows, self.rank)
        places = self._lacks[rank, positions].nonzero().view(-1)
        self._lacks[rank, positions[places]] = False
        return places

    def lacking_anywhere(self) -> Tensor:
        """Return this rank's own rows whose last value some other rank lacks, and count all as sent."""
        self._lacks[self.rank] = False
        rows = self.own[self._lacks.any(0)]
        self._lacks.zero_()
        return rows

    def stirred(self) -> Tensor:
        """Return this rank's own rows that changed since this was last asked."""
        rows = self.own[self._stirred]
        self._stirred.zero_()
        return rows

    def came(self, rows: Tensor) -> None:
        """Note that the owners confirmed or sent these rows."""
        self._seen[rows] = torch.maximum(self._seen[rows], self._seen.new_full((), self.changes))

    def all_came(self) -> None:
        """Note that every rank has every row now."""
        self._all_seen = self.changes

    def by_owner(self, rows: Tensor) -> list[Tensor]:
        """Return rows that others own, ``[k]`` int64 distinct, for each rank; none for this one."""
        divided = self.ownership.divide(rows, torch.int64)
        parts = list(divided.rows.split(divided.counts.tolist()))
        parts[self.rank] = parts[self.rank][:0]
        return parts
