"""Batch sizes over a run, where it gave its workers unequal ones."""

from __future__ import annotations

from collections.abc import Sequence

from omnizen.events import BalanceEvent
from omnizen.report import numbers
from omnizen.report.charts import MATRIX_UP_TO, RUN_COLORS, RUN_DASHES, Figure
from omnizen.report.load import RunData
from omnizen.report.markup import Html, chart, paragraph


def followed(i: int, run: RunData) -> list[Html]:
    """Return the chart of a run's batch sizes; nothing where they were even all the time."""
    events = next((log.balances for log in run.ranks.values() if log.balances), [])
    events = [event for event in events if len(event.sizes) == run.run.size]
    if not events:
        return []
    said = paragraph(words(events), "small")
    if len(events[0].sizes) > MATRIX_UP_TO:
        return [said]
    last = max((step.step for log in run.ranks.values() for step in log.steps), default=events[-1].step)
    title = f"Samples of each worker in a step of {run.label}"
    return [chart(f"batches-{i}", title, figure(events, last), words(events), "")]


def words(events: Sequence[BalanceEvent]) -> str:
    """Say how often sizes changed, and what led to the last change.

    Example:
        >>> words([BalanceEvent(step=0, sizes=[4, 4]), BalanceEvent(step=5, sizes=[6, 2], own_s=[1.0, 3.0])])
        'From 4, 4 samples at the start to 6, 2; 1 change, the last decided in step 5, when the workers\' own \
parts of a step took 1.00 s, 3.00 s.'
    """
    first, last = events[0], events[-1]
    start = ", ".join(map(str, first.sizes))
    if len(events) == 1:
        return f"{start} samples, all the time."
    changes = f"{len(events) - 1} change{'s' if len(events) > 2 else ''}"
    took = ", ".join(numbers.seconds(s) for s in last.own_s)
    end = ", ".join(map(str, last.sizes))
    return (
        f"From {start} samples at the start to {end}; {changes}, the last decided in step {last.step}, when the "
        f"workers' own parts of a step took {took}."
    )


def figure(events: Sequence[BalanceEvent], last_step: int) -> Figure:
    """Return lines of each worker's batch size; they step where a change was decided."""
    steps = [*(event.step for event in events), max(last_step, events[-1].step)]
    lines = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"rank {rank}",
            "x": steps,
            "y": [*(event.sizes[rank] for event in events), events[-1].sizes[rank]],
            "line": {
                "color": RUN_COLORS[rank % len(RUN_COLORS)],
                "dash": RUN_DASHES[rank // len(RUN_COLORS) % len(RUN_DASHES)],
                "shape": "hv",
                "width": 2,
            },
        }
        for rank in range(len(events[0].sizes))
    ]
    layout = {
        "height": 280,
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"title": {"text": "samples"}, "rangemode": "tozero"},
    }
    return {"data": lines, "layout": layout}
