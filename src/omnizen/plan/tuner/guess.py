"""What a tuner expects before it probes: momentum and step size by staleness, and the fastest number of groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from omnizen.plan.delays import MOST_GROUPS
from omnizen.plan.momentum import Curvature, best, curvature_of
from omnizen.plan.tuner.actions import Point
from omnizen.plan.tuner.book import Book, Trial


@dataclass(frozen=True, slots=True)
class Guess:
    """What is expected of one number of groups.

    Args:
        point: momentum and step size there.
        cost: seconds to shrink errors a hundredfold, if the loss is the quadratic that stands for it; in updates
            where no seconds are known.
    """

    point: Point
    cost: float


def staleness_of(groups: int, histogram: Sequence[int] = ()) -> Sequence[float]:
    """Return a histogram: the measured one, or, before anything was measured, all gradients equally late."""
    if sum(histogram):
        return histogram
    return [0.0] * (groups - 1) + [1.0]


def first_guesses(book: Book, step: float) -> list[Guess]:
    """Return what is expected of each number of groups, best first, from the momentum that is usual with one."""
    settings = book.settings
    return guesses(book, curvature_of(settings.sync_momentum, step), {})


def guesses(book: Book, curvature: Curvature, seconds: dict[int, float]) -> list[Guess]:
    """Return what is expected of each number of groups, best first.

    Args:
        seconds: measured seconds between two updates, by number of groups; predicted ones fill the gaps.
    """
    settings = book.settings
    predicted = dict(zip(settings.groups, settings.update_s, strict=False))
    measured = {t.point.groups: t.result.staleness for t in book.trials if sum(t.result.staleness)}
    if not predicted:
        book_s = seconds or {1: 1.0}
        predicted = {g: min(book_s.values()) for g in settings.groups}
    ratios = [seconds[g] / predicted[g] for g in seconds if g in predicted and math.isfinite(seconds[g])]
    scale = float(np.median(ratios)) if ratios else 1.0
    out = []
    for groups in settings.groups:
        if groups > MOST_GROUPS:
            book.note("skipped", f"{groups} groups: momentum is not predicted for more than {MOST_GROUPS}")
            continue
        setting = curvature.best(staleness_of(groups, measured.get(groups, ())))
        update_s = seconds.get(groups, predicted[groups] * scale)
        out.append(
            Guess(Point(groups, setting.step, round(setting.momentum, 2) + 0.0), setting.updates() * update_s)
        )
    return sorted(out, key=lambda guess: guess.cost)


def curvature_by(book: Book, trial: Trial) -> Curvature:
    """Return the quadratic whose best step size at the trial's staleness is the trial's.

    Its condition number is that of the usual momentum with one group: momenta that win short probes say too little.
    """
    groups = trial.point.groups
    usual = curvature_of(book.settings.sync_momentum, 1.0)
    if groups > MOST_GROUPS:
        return Curvature(usual.condition, best([1.0], usual.condition).step / trial.point.step)
    staleness = staleness_of(groups, trial.result.staleness)
    return Curvature(usual.condition, best(staleness, usual.condition).step / trial.point.step)


def measured_seconds(book: Book) -> dict[int, float]:
    """Return the seconds between two updates by number of groups, of the newest probe of each."""
    return {t.point.groups: t.result.update_s for t in book.trials if not t.reason}
