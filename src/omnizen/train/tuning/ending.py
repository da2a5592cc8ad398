"""How the ranks of a stretch stop together without waiting for each other."""

from __future__ import annotations

import threading
from typing import Any, Protocol


class Board(Protocol):
    """Short texts that all ranks see."""

    def put(self, key: str, text: str) -> None:
        """Write a text."""
        ...

    def look(self, key: str) -> str | None:
        """Return a text, None where nobody wrote one; waits for nobody."""
        ...


class StoreBoard:
    """The store of the default process group."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._store: Any = dist.distributed_c10d._get_default_store()

    def put(self, key: str, text: str) -> None:
        """Write a text."""
        self._store.set(key, text)

    def look(self, key: str) -> str | None:
        """Return a text if there is one."""
        return self._store.get(key).decode() if self._store.check([key]) else None


class LocalBoard:
    """A table that the ranks of one process share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[str, str] = {}

    def put(self, key: str, text: str) -> None:
        """Write a text."""
        with self._lock:
            self._texts[key] = text

    def look(self, key: str) -> str | None:
        """Return a text if there is one."""
        with self._lock:
            return self._texts.get(key)


def common_board() -> Board:
    """Return a board for all ranks of the default process group, or for one rank alone."""
    import torch.distributed as dist

    return StoreBoard() if dist.is_initialized() else LocalBoard()


class Ending:
    """When the ranks of a group stop: after a round that its first rank names while it is under way.

    The others cannot be beyond that round, as they need the first rank to end it.

    Args:
        name: of the stretch, never used before.
        group: number of this rank's group.
        leads: whether this rank is its first.
        every: this rank's steps of a round.
    """

    def __init__(self, board: Board, name: str, group: int, *, leads: bool, every: int = 1) -> None:
        self._board, self._leads, self._every = board, leads, every
        self._key, self._all = f"{name}/{group}", f"{name}/all"
        self._rounds: int | None = None

    def now(self, step: int, wants: bool) -> bool:
        """Return whether this step is not to be taken.

        Args:
            step: steps that this rank has taken.
            wants: whether this rank asks all to end.
        """
        if self._rounds is None:
            if self._leads:
                if wants or self._board.look(self._all) is not None:
                    self._rounds = step // self._every + 1
                    self._board.put(self._key, str(self._rounds))
                    self._board.put(self._all, "1")
            else:
                said = self._board.look(self._key)
                self._rounds = None if said is None else int(said)
                if wants and said is None:
                    self._board.put(self._all, "1")
        return self._rounds is not None and step >= self._rounds * self._every
