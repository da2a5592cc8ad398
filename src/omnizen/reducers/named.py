"""A reducer, usually made of several parts, under the name that users know."""

from __future__ import annotations

from dataclasses import dataclass

from omnizen.protocols import Comm, Pending, Reducer
from omnizen.reducers.bases import Around
from omnizen.reducers.by_size import checked_reducer
from omnizen.types import Contribution, Reduced, Sparsity, State, Step, Traffic


@dataclass(frozen=True, slots=True)
class Named(Around):
    """Give a reducer another name; everything else is the reducer's.

    Args:
        reducer: what does the work.
        name: scheme name in the catalogue, in plans and in records.
    """

    reducer: Reducer
    name: str

    def __post_init__(self) -> None:
        checked_reducer("Named", self.reducer)

    def init(self, like: Contribution) -> State:
        """Return the reducer's state."""
        return self.reducer.init(like)

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to average."""
        return self.reducer.start(x, state, comm, step)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict what the reducer moves."""
        return self.reducer.traffic(pattern, size)


def named(reducer: Reducer, name: str) -> Named:
    """Give a reducer a name; see ``Named``."""
    return Named(reducer, name)
