"""The newest values of all shards that this rank has seen: what training reads, and what outlives a server."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from omnizen.train.groups.layout import Shard
from omnizen.train.groups.server import Answer


@dataclass(slots=True)
class Copy:
    """One shard's values.

    Args:
        values: of each slice.
        version: contributions in them.
        applied: last sequence number of each group that is in them.
    """

    values: list[Tensor]
    version: int
    applied: tuple[int, ...]


class Copies:
    """Copies of all shards; read by threads that answer, so each change is whole or not there.

    Args:
        params: the trained parameters, on any device.
        groups: how many groups contribute.
        version: contributions that are in the parameters.
    """

    def __init__(self, shards: Sequence[Shard], params: Sequence[Tensor], groups: int, version: int = 0) -> None:
        self.shards = shards
        self.lock = threading.RLock()
        self._copies = [
            Copy([s.of(params[s.param]).to("cpu", copy=True) for s in shard], version, (-1,) * groups)
            for shard in shards
        ]

    def version(self, shard: int) -> int:
        """Return the version of a shard's values."""
        return self._copies[shard].version

    def regroup(self, groups: int) -> None:
        """Forget which contributions of which group are in the values: groups are others now."""
        with self.lock:
            for copy in self._copies:
                copy.applied = (-1,) * groups

    def accept(self, shard: int, answer: Answer) -> None:
        """Put what a server answered to the copies."""
        with self.lock:
            copy = self._copies[shard]
            for value, item in zip(copy.values, answer.items, strict=True):
                if isinstance(item, tuple):
                    value[item[0]] = item[1].view(-1, *value.shape[1:])
                elif item is not None:
                    value.copy_(item.view(value.shape))
            copy.version, copy.applied = answer.version, answer.applied

    def give(self, shard: int) -> Copy:
        """Return a copy of the copy."""
        with self.lock:
            copy = self._copies[shard]
            return Copy([value.clone() for value in copy.values], copy.version, copy.applied)
