"""The paper's search: a pruned grid from one group to many, and a short one with fewer groups if momentum 0 wins.

References: Hadjis et al. 2016, Omnivore, algorithm 1 and the constants of the authors' program.
"""

from __future__ import annotations

from collections.abc import Sequence

from omnizen.plan.tuner.actions import Point
from omnizen.plan.tuner.book import Asking, Book, Trial


def cold(book: Book) -> Asking:
    """Search without knowing anything: step sizes with one group, then momenta too with more groups."""
    settings = book.settings
    winners: list[Trial] = []
    for groups in settings.groups:
        if not winners:
            points = [Point(groups, step, settings.sync_momentum) for step in settings.steps]
            found = yield from sweep(book, points, ceiling=None)
        else:
            before = winners[-1].point
            points = [Point(groups, step, m) for step in (before.step, before.step / 10) for m in settings.momenta]
            found = yield from sweep(
                book, points, ceiling=before, near=0.0, slower_than=winners[-1].result.update_s
            )
        if found is None:
            break
        winners.append(found)
        book.keep_only(book.best(winners))
    best = book.best(winners) if winners else None
    if best is not None:
        # Different numbers of groups are compared by what they reach in the same seconds.
        best = min(winners, key=lambda t: t.score)
        book.keep_only(best)
    return best


def steady(book: Book, current: Trial) -> Asking:
    """Search around what is used now, with the fastest groups; with half as many while momentum 0 wins."""
    settings = book.settings
    groups, ceiling = fastest(book, current), current.point
    best: Trial | None = None
    while True:
        points = [
            Point(groups, step, m)
            for step in (current.point.step, current.point.step / 10)
            for m in settings.momenta
        ]
        found = yield from sweep(book, points, ceiling=ceiling, near=settings.near)
        if found is None:
            return best
        best = found if best is None or found.score <= best.score else best
        book.keep_only(best)
        if found.point.momentum > 0 or groups == settings.groups[0]:
            return best
        groups = max(g for g in settings.groups if g < groups)
        ceiling = Point(groups, current.point.step, 0.6)
        book.note("expects", f"momentum 0 won: staleness acts as momentum already; {groups} groups are tried")


def fastest(book: Book, current: Trial) -> int:
    """Return the number of groups that was measured to update fastest, if clearly faster than now."""
    seconds: dict[int, float] = {}
    for trial in book.trials:
        if not trial.reason:
            seconds[trial.point.groups] = trial.result.update_s
    now = seconds.get(current.point.groups, current.result.update_s)
    best = min(seconds, key=lambda g: seconds[g], default=current.point.groups)
    return best if seconds.get(best, now) * (1 + book.settings.faster) <= now else current.point.groups


def sweep(
    book: Book,
    points: Sequence[Point],
    *,
    ceiling: Point | None,
    near: float = 0.0,
    slower_than: float | None = None,
) -> Asking:
    """Probe points of one number of groups from small to large; returns the best.

    Args:
        ceiling: what won before; points above it in step size, then momentum, are not tried, nor those
            below in both.
        slower_than: seconds between two updates; None is returned when these are not clearly less.
    """
    settings, trials, failed = book.settings, list[Trial](), list[Point]()
    for point in sorted(set(points)):
        if ceiling is not None and _out_of_question(point, ceiling):
            continue
        if any(point.step >= f.step and point.momentum >= f.momentum for f in failed):
            book.note("skipped", f"{point}: a smaller step and momentum diverged")
            continue
        trial = yield from book.probe(point, settings.probe_s)
        if trial is None:
            break
        if trial.reason:
            failed += [point] if trial.diverged else []
            continue
        trials.append(trial)
        if slower_than is not None and trial.result.update_s * (1 + settings.faster) > slower_than:
            book.note(
                "stopped",
                f"{point.groups} groups update every {trial.result.update_s:.3g} s, fewer groups every "
                f"{slower_than:.3g} s: not {settings.faster:.0%} faster, so no more groups are tried",
            )
            return None
        slower_than = None
    return book.best(trials, near)


def _out_of_question(point: Point, ceiling: Point) -> bool:
    larger = (point.step, point.momentum) > (ceiling.step, ceiling.momentum)
    smaller = point.step < ceiling.step and point.momentum < ceiling.momentum
    return larger or smaller
