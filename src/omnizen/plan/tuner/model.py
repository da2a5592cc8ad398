"""A search that probes only near what is expected to be best."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace

from omnizen.plan.efficiency import saturation
from omnizen.plan.tuner.actions import Action, Point, Result
from omnizen.plan.tuner.book import Asking, Book, Trial
from omnizen.plan.tuner.guess import curvature_by, first_guesses, guesses, measured_seconds

FINE = 10**0.5
"""Factor between step sizes when the right power of ten is known."""
NUDGE = 0.2
"""Momenta on both sides of the expected one that are tried."""
WORTH = 3.0
"""Other numbers of groups are probed when expected to take at most this many times the best one's seconds."""


def cold(book: Book) -> Asking:
    """Find the step size with the groups that update fastest, then look at neighbours and at fewer groups.

    The number of groups is not left to the models alone: where gradients are noisy, staleness costs less than on
    the quadratic that momentum is reckoned on.
    """
    settings = book.settings
    predicted = dict(zip(settings.groups, settings.update_s, strict=False))
    groups = saturation(predicted, settings.faster) if predicted else settings.groups[-1]
    expected = next((g for g in first_guesses(book, settings.steps[0]) if g.point.groups == groups), None)
    momentum = expected.point.momentum if expected else 0.0
    book.note(
        "expects",
        f"{groups} groups to update fastest{f' (every {predicted[groups]:.3g} s)' if predicted else ''}, and "
        f"momentum {momentum:.2f} there if {settings.sync_momentum:.2f} is right for one group",
    )
    best: Trial | None = None
    for step in settings.steps:
        trial = yield from book.probe(Point(groups, step, momentum), settings.probe_s)
        if trial is None:
            break
        before, best = best, _better(book, best, trial)
        if before is not None and best is before:  # smaller ones will be worse still
            break
    if best is None:
        return None
    best = yield from _around(book, best, [replace(best.point, step=best.point.step * f) for f in (FINE, 1 / FINE)])
    best = yield from _momenta(book, best)
    return (yield from _groups(book, best))


def steady(book: Book, current: Trial) -> Asking:
    """Look again at what is used now and at its neighbours."""
    best = yield from book.probe(current.point, book.settings.probe_s)
    if best is None:
        return None
    if best.reason:
        best = yield from book.probe(replace(current.point, step=current.point.step / 10), book.settings.probe_s)
        if best is None or best.reason:
            return None
    best = yield from _around(book, best, [replace(best.point, step=best.point.step * f) for f in (1 / FINE, FINE)])
    best = yield from _momenta(book, best)
    return (yield from _groups(book, best))


def _momenta(book: Book, best: Trial) -> Generator[Action, Result, Trial]:
    at = best.point
    points = [replace(at, momentum=round(at.momentum + nudge, 3)) for nudge in (NUDGE, -NUDGE)]
    return (yield from _around(book, best, [p for p in points if -0.95 < p.momentum < 1]))


def _groups(book: Book, best: Trial) -> Generator[Action, Result, Trial]:
    """Probe one group, the next fewer, and others that may be as fast, at settings corrected for staleness."""
    settings, groups = book.settings, best.point.groups
    smaller = [g for g in settings.groups if g < groups]
    known = {t.point.groups for t in book.recent}
    found = guesses(book, curvature_by(book, best), measured_seconds(book))
    least = found[0].cost if found else math.inf
    for guess in found:
        if guess.point.groups in known:
            continue
        near = guess.point.groups in {settings.groups[0], *smaller[-1:]}
        if guess.cost > WORTH * least and not near:
            book.note(
                "skipped", f"{guess.point}: expected to take {guess.cost / least:.2g} times the time of the best"
            )
            continue
        trial = yield from book.probe(guess.point, settings.probe_s)
        if trial is None:
            break
        best = _better(book, best, trial) or best
    return best if best.point.groups == groups else (yield from _momenta(book, best))


def _around(book: Book, best: Trial, points: Sequence[Point]) -> Generator[Action, Result, Trial]:
    """Probe neighbours until one is better."""
    for point in points:
        if any(t.point == point for t in book.recent) or _blown(book, point):
            continue
        trial = yield from book.probe(point, book.settings.probe_s)
        if trial is None:
            break
        if _better(book, best, trial) is trial:
            return trial
    return best


def _blown(book: Book, point: Point) -> bool:
    return any(
        t.diverged and t.point.groups == point.groups and t.point.step <= point.step
        and t.point.momentum <= point.momentum
        for t in book.recent
    )  # fmt: skip


def _better(book: Book, best: Trial | None, trial: Trial) -> Trial | None:
    """Return the one with the lower score, and let the other one's state go."""
    if trial.reason:
        return best
    found = trial if best is None or trial.score < best.score else best
    book.keep_only(found)
    return found
