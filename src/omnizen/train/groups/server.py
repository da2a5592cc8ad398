"""One shard's server: the last values, the optimizer that makes them, and who has contributed what."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from omnizen.train.groups.layout import Shard
from omnizen.train.groups.mirror import apply_settings, changes_all_rows, mirror
from omnizen.train.groups.slices import Item

ROW_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answers to a push or a pull.

    Args:
        version: contributions in the values.
        applied: the last sequence number of each group that is in them.
        items: what changed since the version that the asker read.
    """

    version: int
    applied: tuple[int, ...]
    items: list[Item]


@dataclass(frozen=True, slots=True)
class Owner:
    """Which optimizer and which of its parameter groups a slice belongs to."""

    optimizer: int
    group: int


class ShardServer:
    """Holds the master values of a shard and applies contributions, one after another.

    A contribution that comes again (a message that was repeated, a group that did not hear the answer) is answered
    and not applied: each group numbers its own.

    Args:
        shard: its slices.
        values: of each slice; copied.
        owners: of each slice.
        optimizers: the user's, to be mirrored; none of their tensors is used.
        states: of each slice, where training goes on.
        version: contributions so far.
        applied: last sequence number of each group.

    Example:
        >>> from omnizen.train.groups.layout import cut
        >>> weights = torch.ones(2)
        >>> server = ShardServer(cut([weights], 1)[0], [weights], [Owner(0, 0)],
        ...     [torch.optim.SGD([weights], lr=0.5)], applied=[-1])
        >>> server.push(0, 0, 0, '[[{"lr": 0.5}]]', [torch.ones(2)]).items
        [tensor([0.5000, 0.5000])]
    """

    def __init__(
        self,
        shard: Shard,
        values: Sequence[Tensor],
        owners: Sequence[Owner],
        optimizers: Sequence[Optimizer],
        *,
        applied: Sequence[int],
        version: int = 0,
        states: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.shard, self.version, self.applied = shard, version, list(applied)
        self.dtypes = [value.dtype for value in values]
        self._values = [
            Parameter(value.detach().to("cpu", copy=True).view(piece.shape))
            for piece, value in zip(shard, values, strict=True)
        ]
        self._optimizers = [
            mirror(
                optimizer,
                [
                    [p for p, owner in zip(self._values, owners, strict=True) if owner == Owner(i, j)]
                    for j in range(len(optimizer.param_groups))
                ],
            )
            for i, optimizer in enumerate(optimizers)
            if any(owner.optimizer == i for owner in owners)
        ]
        self._kinds = sorted({owner.optimizer for owner in owners})
        self._owners = list(owners)
        for value, owner, state in zip(self._values, owners, states or [], strict=False):
            if state:
                self._of(owner).state[value] = dict(state)
        self._settings = ""
        self._last = [version] * len(shard)
        """Version in which each slice last changed."""
        self._rows: dict[int, Tensor] = {}
        """Version in which each row last changed, of slices that got single rows."""
        self._lock = threading.Lock()
        self.histogram: Counter[int] = Counter()

    def _of(self, owner: Owner) -> Optimizer:
        return self._optimizers[self._kinds.index(owner.optimizer)]

    def push(self, group: int, sequence: int, read: int, settings: str, items: Sequence[Item]) -> Answer:
        """Apply a contribution unless it was applied before.

        Args:
            group: who contributes.
            sequence: the group's own number of this contribution.
            read: version of the values that the gradient was taken at.
            settings: of the optimizers, from ``settings_text``.
            items: gradient of each slice, averaged inside the group.
        """
        with self._lock:
            if sequence > self.applied[group]:
                self._apply(settings, items)
                self.histogram[self.version - 1 - read] += 1
                self.applied[group] = sequence
            return self._answer(read)

    def pull(self, read: int) -> Answer:
        """Return what changed since a version; everything since -1."""
        with self._lock:
            return self._answer(read)

    def regroup(self, groups: int) -> None:
        """Begin to count the contributions of so many other groups; values and optimizer stay as they are."""
        with self._lock:
            self.applied = [-1] * groups
            self.histogram.clear()

    def states(self) -> list[dict[str, Any]]:
        """Return the optimizer's state of each slice."""
        with self._lock:
            found = [
                self._of(owner).state.get(value, {})
                for value, owner in zip(self._values, self._owners, strict=True)
            ]
            return [{k: _plain(v) if isinstance(v, Tensor) else v for k, v in each.items()} for each in found]

    def _apply(self, settings: str, items: Sequence[Item]) -> None:
        if settings != self._settings:
            apply_settings(dict(zip(self._kinds, self._optimizers, strict=True)), settings)
            self._settings = settings
        for value, item in zip(self._values, items, strict=True):
            value.grad = _gradient(item, value)
        try:
            for optimizer in self._optimizers:
                optimizer.step()
        finally:
            for value in self._values:
                value.grad = None
        self.version += 1
        for number, item in enumerate(items):
            if item is not None:
                self._note_change(number, item)

    def _note_change(self, number: int, item: Item) -> None:
        self._last[number] = self.version
        owner, value = self._owners[number], self._values[number]
        optimizer = self._of(owner)
        if isinstance(item, tuple) and not changes_all_rows(optimizer, optimizer.param_groups[owner.group]):
            if number not in self._rows:
                self._rows[number] = torch.full((value.shape[0],), self.version - 1)
            self._rows[number][item[0]] = self.version
        elif number in self._rows:
            self._rows[number].fill_(self.version)

    def _answer(self, read: int) -> Answer:
        items = [self._since(number, read) for number in range(len(self.shard))]
        return Answer(self.version, tuple(self.applied), items)

    def _since(self, number: int, read: int) -> Item:
        value = self._values[number].detach()
        if self._last[number] <= read:
            return None
        if number in self._rows and read >= 0:
            rows = (self._rows[number] > read).nonzero().view(-1)
            row_bytes = value.shape[1] * value.element_size() if value.dim() > 1 else value.element_size()
            if len(rows) * (ROW_NUMBER_BYTES + row_bytes) < value.numel() * value.element_size():
                return rows, value[rows]
        return value.clone()


def _plain(x: Tensor) -> Tensor:
    """Return a copy; momentum of sparse gradients is a sparse tensor, and travels as a dense one."""
    return x.to_dense() if x.is_sparse else x.clone()


def _gradient(item: Item, value: Tensor) -> Tensor | None:
    if not isinstance(item, tuple):
        return None if item is None else item.view(value.shape)
    rows, found = item
    return torch.sparse_coo_tensor(rows[None], found, value.shape, is_coalesced=True, check_invariants=False)
