"""The automatic optimizer: searches from a checkpoint, trains, searches again; a state machine without a clock."""

from __future__ import annotations

import json
import math
from collections.abc import Generator
from dataclasses import asdict, replace
from typing import Any

from omnizen.errors import UserError, nearest
from omnizen.plan.tuner import grid, halving, model
from omnizen.plan.tuner.actions import (
    Action,
    Done,
    Probe,
    Result,
    action_to_dict,
    result_from_dict,
    result_to_dict,
)
from omnizen.plan.tuner.book import Asking, Book, Note, Trial
from omnizen.plan.tuner.settings import Settings

VERSION = 1
SEARCHES = {"grid": grid, "halving": halving, "model": model}
MOST_FAILURES = 5
"""Stretches of training in a row that may diverge or fail, each gone back from with a tenth of the step size."""
LOWER = 2
"""How often a cold start in which everything diverged is repeated with steps a hundred times smaller."""


class Tuner:
    """Says what to do next, and is told how it went.

    It is a function of its settings and of what it was told: saved and restored in any phase, it goes on as if
    nothing had been. Whoever carries its actions out keeps a checkpoint (the end of the last ``Train``, at
    first the state before the first action) and the states at the end of the probes in ``kept``.

    Example:
        >>> tuner = Tuner(Settings(workers=4, search="grid", probe_s=5.0))
        >>> tuner.next().point
        Point(groups=1, step=0.0001, momentum=0.9)
        >>> tuner.tell(Result(seconds=5.0, updates=2, losses=(2.3, float("nan"))))
        >>> tuner.notes[0].kind, Tuner.from_json(tuner.to_json()).next() == tuner.next()
        ('rejected', True)
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._told: list[tuple[Action, Result]] = []
        self._book = Book(settings)
        self._script = _script(self._book)
        self._action: Action = next(self._script)

    def next(self) -> Action:
        """Return what to do; the same until it is told how that went."""
        return self._action

    def tell(self, result: Result) -> None:
        """Say how the action went.

        Raises:
            UserError: there is nothing more to do, or the result has a negative time.
        """
        if isinstance(self._action, Done):
            raise UserError(f"the tuner is done ({self._action.reason}); it expects no more results")
        if not 0 <= result.seconds < math.inf or result.updates < 0:
            raise UserError(
                f"a result takes 0 seconds or more, and an end, got {result.seconds} s, {result.updates} updates"
            )
        self._told.append((self._action, result))
        self._action = self._script.send(result)

    @property
    def told(self) -> tuple[tuple[Action, Result], ...]:
        """Actions that were carried out, and how they went."""
        return tuple(self._told)

    @property
    def kept(self) -> frozenset[int]:
        """Numbers of probes whose states may still be asked for."""
        return frozenset(self._book.kept)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What it expected, tried, rejected, chose and was unsure of, in order."""
        return tuple(self._book.notes)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All probes that were carried out."""
        return tuple(self._book.trials)

    @property
    def overhead(self) -> float:
        """Share of all seconds so far that went to probes whose outcome was not trained on."""
        return self._book.wasted

    def to_json(self) -> str:
        """Return everything as text."""
        told = [{"action": action_to_dict(a), "result": result_to_dict(r)} for a, r in self._told]
        return json.dumps({"version": VERSION, "settings": asdict(self.settings), "told": told}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Tuner:
        """Go on from saved text.

        Raises:
            UserError: it is not such a text, or was saved by a release that searched otherwise.
        """
        try:
            saved = json.loads(text)
            if saved["version"] != VERSION:
                raise UserError(f"version is {saved['version']}, this release reads {VERSION}")
            tuner = cls(_settings(saved["settings"]))
            told = [(step["action"], result_from_dict(step["result"])) for step in saved["told"]]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise UserError(f"the saved state of a tuner cannot be read: {error!r}") from error
        for number, (action, result) in enumerate(told):
            if json.dumps(action_to_dict(tuner.next())) != json.dumps(action):
                raise UserError(
                    f"the saved state of a tuner cannot be gone on with: at action {number} this release asks for "
                    f"{tuner.next()}, the saved run was asked for {action}; start the search anew"
                )
            tuner.tell(result)
        return tuner


def _settings(table: dict[str, Any]) -> Settings:
    known = Settings.__dataclass_fields__
    for key in table:
        if key not in known:
            raise UserError(f"a tuner has no such setting: {nearest(key, known)}")
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
    return Settings(**values)


def _script(book: Book) -> Generator[Action, Result, None]:
    found = yield from _cold(book)
    if found is None:
        yield Done("every probe diverged or failed; the notes say with what")
        return
    failures = 0
    while True:
        book.chose(found)
        phase, book.phase = book.phase, "training"
        result = yield from book.train(found)
        if result.stop:
            yield Done("training ended")
            return
        horizon_s = book.settings.horizon_s
        if horizon_s is not None and book.probed_s + book.trained_s >= horizon_s:
            yield Done(f"the {horizon_s:.3g} s that were asked for are over")
            return
        if not result.losses or result.score(book.settings.last) == float("inf"):
            book.note(
                "rejected", f"{found.point}: training diverged or failed ({result.error or 'no finite loss'})"
            )
            failures += 1
            if failures > MOST_FAILURES:
                yield Done(f"training failed {failures} times in a row; the notes say with what")
                return
            found = _smaller(found)
        else:
            failures = 0
            found = _as_trained(found, result)
            if not book.settings.steady:
                book.phase = phase
                continue
        book.begin("steady state")
        search: Asking = SEARCHES[book.settings.search].steady(book, found)
        again = yield from search
        found = again if again is not None else found


def _cold(book: Book) -> Asking:
    settings = book.settings
    for lower in range(LOWER + 1):
        if lower:
            book.settings = replace(settings, steps=tuple(s * 100.0**-lower for s in settings.steps))
            book.note("expects", f"nothing held; step sizes from {book.settings.steps[0]:.3g} down are tried")
        search: Asking = SEARCHES[settings.search].cold(book)
        found = yield from search
        if found is not None:
            return found
    return None


def _smaller(trial: Trial) -> Trial:
    """Return the trial with a step ten times smaller, as if it had been probed; no state of its is used."""
    point = replace(trial.point, step=trial.point.step / 10)
    return replace(trial, probe=Probe(trial.probe.number, point, trial.probe.seconds, None))


def _as_trained(trial: Trial, result: Result) -> Trial:
    return replace(trial, result=result)
