"""Runs a reducer on thread ranks and keeps everything that its laws ask about."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.laws.samples import Sample, contributions
from omnizen.protocols import Reducer
from omnizen.types import Contribution, Reduced, Step, Traffic

T = TypeVar("T")
TIMEOUT_S = 10.0
SIZES = (1, 2, 3, 4, 5, 7, 8)


@dataclass(frozen=True, slots=True)
class AtRank:
    """One rank's part in one reduction.

    Args:
        given: copy of what went in.
        after: what went in, as it was after the result had been changed.
        result: copy of what came out.
        metered: what crossed the links at this rank.
    """

    given: Contribution
    after: Contribution
    result: Reduced
    metered: Traffic


@dataclass(frozen=True, slots=True)
class Trial:
    """One reduction of one sample on all ranks."""

    sample: str
    ranks: Sequence[AtRank]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.sample} ({_kind(self.ranks[0].given)}), {self.size} rank{'s' * (self.size > 1)}"


@dataclass(slots=True)
class Trials:
    """A reducer with its runs on every sample; each run happens once, when a law first asks, and so does a failure.

    Args:
        reducer: what is tried.
        sizes: numbers of ranks.
    """

    reducer: Reducer
    sizes: Sequence[int] = SIZES
    _runs: list[Trial] | None = field(default=None, repr=False)
    _failure: BaseException | None = field(default=None, repr=False)

    def all(self) -> list[Trial]:
        """Return the trials of every sample at every number of ranks; one that failed fails for every law."""
        if self._failure is not None:
            raise self._failure
        if self._runs is None:
            try:
                self._runs = [
                    self.run(name, sample, size)
                    for kind in self.reducer.takes
                    for name, sample in contributions(kind).items()
                    for size in self.sizes
                ]
            except BaseException as error:
                self._failure = error
                raise
        return self._runs

    def run(self, name: str, sample: Sample, size: int) -> Trial:
        """Reduce one sample once."""
        return Trial(name, run_on_ranks(size, lambda comm: _reduce(self.reducer, sample(comm.rank), comm)))


def run_on_ranks(size: int, body: Callable[[Metered], T]) -> list[T]:
    """Run a body on metered thread ranks, within a time limit."""
    return run_ranks(size, body, timeout_s=TIMEOUT_S, wrap=Metered)


def _reduce(reducer: Reducer, x: Contribution, comm: Metered) -> AtRank:
    given = copy.deepcopy(x)
    before = comm.reading()
    result = reducer.start(x, reducer.init(x), comm, Step(0, shared_seed=1, name="law")).wait()
    metered = (comm.reading() - before).traffic
    kept = copy.deepcopy(result)
    result.value.values.add_(1.0)  # whoever owns the result may change it
    return AtRank(given, x, kept, metered)


def _kind(x: Contribution) -> str:
    return type(x).__name__.lower()
