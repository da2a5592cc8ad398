"""The section on what more machines of the measured kind would give: simulated, with what that rests on."""

from __future__ import annotations

from collections.abc import Sequence

from omnizen.errors import UserError
from omnizen.measure.facts import Facts
from omnizen.plan.at_scale import SIZES, AtScale, assumptions, at_scale
from omnizen.report import charts, numbers
from omnizen.report.load import RunData
from omnizen.report.markup import Cell, Html, chart, details, empty, paragraph, section, table


def more_machines(runs: Sequence[RunData]) -> Html:
    """Samples a second on 8 to 4,096 workers like those of each run; facts that runs share are shown once."""
    seen: dict[str, tuple[list[str], Facts]] = {}
    for run in runs:
        if run.facts is not None:
            seen.setdefault(run.facts.digest(), ([], run.facts))[0].append(run.label)
    if not seen:
        return section("more", "What more of these machines would give", empty("No run directory holds facts."))
    parts = []
    for i, (labels, facts) in enumerate(seen.values()):
        parts += _of_facts(f"more-{i}", " and ".join(labels), facts)
    return section("more", "What more of these machines would give", *parts)


def _of_facts(name: str, label: str, facts: Facts) -> list[Html]:
    try:
        found = at_scale(facts, SIZES, groups=False)
    except UserError as error:
        return [empty(f"Nothing can be said of {label}: {error}.")]
    largest = [each for each in found if each.workers == max(SIZES)]
    best = max(largest, key=lambda each: each.samples_per_s)
    text = (
        f"Simulated, not measured: {max(SIZES):,} machines like those of {label} would get "
        f"{numbers.significant(best.samples_per_s)} samples/s ({best.title}), {numbers.percent(best.efficiency)} "
        "of what they could do if nobody waited."
    )
    rows: list[list[Cell]] = [
        [
            f"{each.workers:,}",
            each.title,
            numbers.significant(each.samples_per_s),
            numbers.percent(each.efficiency),
            numbers.seconds(each.update_s),
            numbers.MISSING if each.price is None else numbers.significant(each.price),
        ]
        for each in found
    ]
    head: list[Cell] = ["workers", "strategy", "samples/s", "of own rates", "an update takes", "samples needed"]
    return [
        chart(name, Html("Samples a second by workers"), _figure(found), text, ""),
        paragraph(f"It rests on this: {'; '.join(assumptions(facts))}.", "small"),
        details(Html("All numbers"), table(f"More machines like those of {label}", head, rows, numeric_from=2)),
    ]


def _figure(found: Sequence[AtScale]) -> charts.Figure:
    titles = list(dict.fromkeys(each.title for each in found))
    lines = [
        charts.line(i, title, [(each.workers, each.samples_per_s) for each in found if each.title == title])
        for i, title in enumerate(titles)
    ]
    alone = {each.workers: each.samples_per_s / each.efficiency for each in found}
    lines.append(charts.line(len(titles), "nobody waits for anybody", sorted(alone.items())))
    ticks = sorted(alone)
    return {
        "data": lines,
        "layout": {
            "height": 340,
            "xaxis": {
                "title": {"text": "workers"},
                "type": "log",
                "tickvals": ticks,
                "ticktext": [f"{n:,}" for n in ticks],
            },
            "yaxis": {"title": {"text": "samples a second"}, "type": "log"},
        },
    }
