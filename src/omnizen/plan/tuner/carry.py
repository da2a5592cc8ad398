"""Carry a tuner's actions out: keep the states that it may go back to, and write down where it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from omnizen.errors import UserError
from omnizen.measure.files import write_whole
from omnizen.plan.tuner.actions import Done, Probe, Result, Train
from omnizen.plan.tuner.tuner import Tuner

S = TypeVar("S")
"""A state of training: weights, and whatever else is needed to go on from there."""


class Carrier(Generic[S]):
    """Runs one tuner.

    On several ranks each may have its own: a tuner is a function of what it is told, so as long as all are told the
    same results, all ask for the same actions.

    Args:
        train: trains as an action says from a state; returns how it went and the state at the end. Must not change
            the state that it is given.
        first: the state to begin with.
        ends: states at the end of kept probes, by number, for a tuner that was restored.
        save: file that is written after each action, for ``Tuner.from_json``; None for none.

    Example:
        >>> carrier = Carrier(tuner, train, first=weights)  # doctest: +SKIP
        >>> while carrier.step() is not None: ...  # doctest: +SKIP
    """

    def __init__(
        self,
        tuner: Tuner,
        train: Callable[[Probe | Train, S], tuple[Result, S]],
        first: S,
        *,
        ends: Mapping[int, S] | None = None,
        save: Path | None = None,
    ) -> None:
        self.tuner = tuner
        self.checkpoint = first
        self._train = train
        self._ends: dict[int, S] = dict(ends or {})
        self._save = save

    @property
    def states(self) -> list[S]:
        """The checkpoint, and states that may still be gone on from."""
        return [self.checkpoint, *self._ends.values()]

    def step(self) -> Result | None:
        """Carry out one action; returns how it went, or None when nothing is left to do.

        Raises:
            UserError: the tuner was restored in the middle of a search, and the state that it goes on from is gone.
        """
        action = self.tuner.next()
        if isinstance(action, Done):
            return None
        if action.start is not None and action.start not in self._ends:
            raise UserError(
                f"the state at the end of probe {action.start} is gone; a restored tuner goes on only with the "
                "states of its kept probes (Tuner.kept)"
            )
        result, end = self._train(action, self.checkpoint if action.start is None else self._ends[action.start])
        if isinstance(action, Probe):
            self._ends[action.number] = end
        elif result.score(self.tuner.settings.last) < float("inf"):
            self.checkpoint = end
        self.tuner.tell(result)
        self._ends = {number: state for number, state in self._ends.items() if number in self.tuner.kept}
        if self._save is not None:
            write_whole(self._save, self.tuner.to_json())
        return result
