"""Successive halving: many points get a little time, the better half of them goes on for twice as long.

References: Jamieson and Talwalkar 2016, Non-stochastic Best Arm Identification and Hyperparameter Optimization.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from omnizen.plan.tuner.actions import Action, Point, Result
from omnizen.plan.tuner.book import Asking, Book, Trial
from omnizen.plan.tuner.guess import first_guesses

RUNGS = 3
"""Times that the field is halved; the first rung takes a probe's seconds divided by 2 ** RUNGS."""


def cold(book: Book) -> Asking:
    """Race each number of groups with momentum corrected for its staleness, at every step size."""
    settings = book.settings
    guesses = first_guesses(book, settings.steps[0])
    points = [
        Point(guess.point.groups, guess.point.step * step / settings.steps[0], guess.point.momentum)
        for step in reversed(settings.steps)
        for guess in guesses
    ]
    return (yield from race(book, points))


def steady(book: Book, current: Trial) -> Asking:
    """Race what is used now against smaller and larger steps, other momenta, and half the groups."""
    groups, step, momentum = current.point.groups, current.point.step, current.point.momentum
    points = [
        current.point,
        Point(groups, step / 3, momentum),
        Point(groups, step, round(max(-0.9, momentum - 0.2), 3)),
        Point(groups, step, round(min(0.95, momentum + 0.2), 3)),
    ]
    fewer = [g for g in book.settings.groups if g < groups]
    if fewer and momentum <= 0:
        points.append(Point(fewer[-1], step, 0.0))
    return (yield from race(book, points))


def race(book: Book, points: Sequence[Point]) -> Generator[Action, Result, Trial | None]:
    """Halve a field of points until one is left; each goes on from where it was."""
    settings = book.settings
    seconds = settings.probe_s / 2**RUNGS
    field: list[Trial] = []
    failed: list[Point] = []
    blown: set[Point] = set()
    for point in points:
        if any(f.groups == point.groups and f.step <= point.step and f.momentum <= point.momentum for f in failed):
            book.note("skipped", f"{point}: a smaller step diverged")
            continue
        trial = yield from book.probe(point, seconds)
        if trial is None:
            break
        if trial.diverged:
            failed.append(point)
        elif not trial.reason:
            field.append(trial)
    while len(field) > 1:
        field.sort(key=lambda t: t.score)
        field = field[: (len(field) + 1) // 2]
        book.keep_only(*field)
        if len(field) == 1:
            break
        went_on: list[Trial] = []
        for trial in field:
            longer = yield from book.probe(trial.point, seconds, trial.probe.number)
            if longer is None:
                return _least([*went_on, *field], blown)
            if longer.reason:
                blown.add(trial.point)
            else:
                went_on.append(longer)
        if not went_on:  # what held in a shorter time is left, never what did not hold in a longer one
            tried = set(points)
            return _least([t for t in book.recent if not t.reason and t.point in tried], blown)
        book.keep_only(*went_on)
        field, seconds = went_on, 2 * seconds
    return field[0] if field else None


def _least(trials: Sequence[Trial], blown: set[Point]) -> Trial | None:
    return min((t for t in trials if t.point not in blown), key=lambda t: t.score, default=None)
