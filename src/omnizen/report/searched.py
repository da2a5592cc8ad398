"""The section on a search of the automatic optimizer: what it tried, decided and why."""

from __future__ import annotations

from collections.abc import Sequence

from omnizen.events import SearchEvent
from omnizen.report import numbers
from omnizen.report.charts import Figure, by_place, thin
from omnizen.report.load import RunData
from omnizen.report.markup import Cell, Html, chart, long, section, table

MOST = 200
"""Decisions that are listed."""
MOST_LINES = 6
"""Probes whose losses are drawn: those that ended lowest."""


def searched(runs: Sequence[RunData]) -> Html:
    """Decisions of each run that searched, with the losses of its best probes; nothing where none did."""
    parts: list[Html] = []
    for i, run in enumerate(runs):
        events = decisions(run)
        if events:
            parts += _of_run(f"search-{i}", run.label, events)
    return section("search", "What the search tried and decided", *parts) if parts else Html("")


def decisions(run: RunData) -> list[SearchEvent]:
    """Return what was decided, in order."""
    return next((log.searches for log in run.ranks.values() if log.searches), [])


def _of_run(name: str, label: str, events: Sequence[SearchEvent]) -> list[Html]:
    probes = [e for e in events if e.decision == "probed"]
    rejected = sum(e.decision == "rejected" for e in events)
    chosen = [e for e in events if e.decision == "chose"]
    said = [f"{len(probes)} probes of {label} were carried out and {rejected} rejected"]
    said += [f"{e.phase} chose {e.text}" for e in chosen[:MOST_LINES]]
    rows: list[list[Cell]] = [
        [
            e.phase,
            e.decision,
            numbers.plain(e.loss) if e.loss is not None else numbers.MISSING,
            long(e.text),
        ]
        for e in events[:MOST]
    ]
    more = f", the first {MOST} of {len(events)}" if len(events) > MOST else ""
    return [
        chart(name, f"Losses of the best probes of {label}", _figure(probes), "; ".join(said) + ".", "No losses."),
        table(f"Decisions of {label}{more}", ["phase", "decision", "loss", "in words"], rows, numeric_from=9),
    ]


def _figure(probes: Sequence[SearchEvent]) -> Figure | None:
    drawn = [e for e in probes if e.losses and e.loss is not None]
    best = sorted(drawn, key=lambda e: e.loss or 0.0)[:MOST_LINES]
    curves = []
    for e in sorted(best, key=probes.index):
        share = 100.0 / max(1, len(e.losses) - 1)
        curves.append((e.text.split(":")[0], thin([(n * share, loss) for n, loss in enumerate(e.losses)])))
    return by_place(curves, "percent of the probe", "loss")
