"""The sections on what happened: comparison, time, loss, prediction, links, the runs themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from omnizen.report import batches, charts, numbers, words
from omnizen.report.analysis import (
    Summary,
    all_lengths,
    link_bytes,
    loss_at_equal_steps,
    losses,
    predicted,
    summarise,
    unusual_steps,
)
from omnizen.report.load import RunData
from omnizen.report.markup import Cell, Html, chart, code, empty, long, paragraph, section, table, wrapping

MOST_LINKS = 20


def comparison(runs: Sequence[RunData]) -> Html:
    """All runs side by side."""
    chosen = words.pair(runs)
    if chosen is None:
        return Html("")
    reference = chosen[1]
    summaries = [summarise(run) for run in runs]
    theirs = summaries[runs.index(reference)]
    dilated = any(run.run.dilation != 1 for run in runs)
    equal = loss_at_equal_steps(list(runs))

    def row(name: str, value: Callable[[RunData, Summary], str]) -> list[Cell]:
        return [name, *(value(run, s) if s else numbers.MISSING for run, s in zip(runs, summaries, strict=True))]

    def said_before(run: RunData, _: Summary) -> str:
        return numbers.seconds(run.plan.prediction.step_s) if run.plan else "no plan"

    def off(run: RunData, summary: Summary) -> str:
        expected = predicted(run, summary)
        return numbers.difference(words.deviation(expected.step_s, summary.step_s)) if expected else numbers.MISSING

    def speed(_: RunData, summary: Summary) -> str:
        return (
            f"{numbers.significant(theirs.step_s / summary.step_s)} {numbers.TIMES}" if theirs else numbers.MISSING
        )

    rows = [row("Seconds per step" + (", as measured" if dilated else ""), lambda _, s: numbers.seconds(s.step_s))]
    if dilated:
        rows.append(
            row(
                "Seconds per step, divided by the dilation", lambda r, s: numbers.seconds(s.step_s / r.run.dilation)
            )
        )
    if not words.comparable(runs):
        rows.append(row(f"Speed, {reference.label} = 1", speed))
    rows.append(row("Received per worker and step", lambda _, s: numbers.nbytes(s.rx_bytes)))
    if any(s and s.busiest_rx_bytes > 1.02 * s.rx_bytes for s in summaries):
        rows.append(row("Received by the busiest worker", lambda _, s: numbers.nbytes(s.busiest_rx_bytes)))
    rows.append(row("Samples per second, all workers", lambda _, s: numbers.plain(s.samples_per_s)))
    if equal:
        rows.append([f"Loss at step {equal[0]}", *(numbers.plain(loss) for loss in equal[1])])
    rows.append(row("Predicted seconds per step", said_before))
    rows.append(row("Measured against predicted", off))
    rows.append(row("Steps that count", lambda _, s: f"{s.first_step} to {s.last_step}"))
    rows.append(["Network", *(wrapping(run.run.network) for run in runs)])
    note = "Bytes are the gradients' payloads as counted while running, size headers included, those of TCP not."
    head: list[Cell] = ["", *(run.label for run in runs)]
    grid = table("Medians and means of the steps that count", head, rows)
    return section("comparison", "Side by side", grid, paragraph(note, "small"))


def time(runs: Sequence[RunData]) -> Html:
    """Where each worker's step goes, the slowest worker, unusual steps, step times over the run."""
    parts: list[Html] = []
    for i, run in enumerate(runs):
        summary = summarise(run)
        if summary is None:
            parts.append(empty(f"{run.label} finished no step, so there is no time to break down."))
            continue
        said = words.slowest(run, summary)
        span = f"Mean of steps {summary.first_step} to {summary.last_step}."
        figure = charts.breakdown(run)
        why_not = f"{run.label} recorded how long its steps took, but not where the time went."
        parts.append(chart(f"time-{i}", f"Where a step of {run.label} goes", figure, f"{said} {span}", why_not))
        parts += _unusual(run)
        parts += batches.followed(i, run)
    figure = charts.step_times(runs)
    parts.append(chart("steps", "Step times over the run", figure, _step_times(runs), "No run finished a step."))
    return section("time", "Where the time goes", *parts)


def _unusual(run: RunData) -> list[Html]:
    rows: list[list[Cell]] = []
    for step in unusual_steps(run):
        if step.rank is None:
            cause = "communication: no worker computed longer than usual"
        else:
            cause = (
                f"{words.worker(run, step.rank)} computed {numbers.seconds(step.compute_extra_s)} longer than usual"
            )
        rows.append(
            [str(step.step), numbers.seconds(step.step_s), f"+{numbers.seconds(step.extra_s)}", long(cause)]
        )
    if not rows:
        return []
    head: list[Cell] = ["step", "took", "beyond typical", "because"]
    return [table(f"Unusually long steps of {run.label}", head, rows, numeric_from=9)]


def _step_times(runs: Sequence[RunData]) -> str:
    by_run = {run.label: all_lengths(run) for run in runs}
    by_run = {label: lengths for label, lengths in by_run.items() if lengths}
    if not by_run:
        return ""
    said = []
    top_s = charts.shown_up_to(list(by_run.values()))
    for label, lengths in by_run.items():
        low, high = numbers.seconds(min(lengths.values())), numbers.seconds(max(lengths.values()))
        beyond = sum(took > top_s for took in lengths.values())
        cut = f" ({beyond} of them longer than the chart shows)" if beyond else ""
        said.append(f"{label}: {len(lengths)} steps of {low} to {high}{cut}")
    return "; ".join(said) + ". Each step lasts as long as it does on its slowest worker."


def loss(runs: Sequence[RunData]) -> Html:
    """Loss against steps and against seconds."""
    said = []
    for run in runs:
        curve = losses(run)
        if curve:
            (first, _, start), (last, at, end) = curve[0], curve[-1]
            said.append(
                f"{run.label}: from {numbers.plain(start)} at step {first} to {numbers.plain(end)} at step {last}, "
                f"{numbers.seconds(at)} after the start"
            )
    text = "; ".join(said) + "."
    none = "No run recorded a loss; call run.log(loss=...) once a step."
    by_step = chart("loss-steps", "Loss against steps", charts.loss_by_step(runs), text, none)
    if not said:
        return section("loss", "Loss", empty(none))
    seconds = "Measuring, planning and start-up count in the seconds."
    by_second = chart("loss-seconds", "Loss against seconds", charts.loss_by_second(runs), seconds, none)
    return section("loss", "Loss", by_step, by_second)


def prediction(runs: Sequence[RunData]) -> Html:
    """Predicted against measured, for each run with a plan."""
    parts = []
    for run in runs:
        summary = summarise(run)
        if run.plan is None:
            parts.append(empty(f"{run.label} ran without a plan, so nothing was predicted."))
            continue
        if summary is None:
            parts.append(empty(f"{run.label} finished no step, so there is nothing to hold against its plan."))
            continue
        expected = predicted(run, summary)
        if expected is None:
            parts.append(empty(f"{run.label} took no step after its plan had come into force."))
            continue
        rows = [_held("Seconds per step", expected.step_s, summary.step_s, numbers.seconds)]
        slowest = summary.slowest
        if slowest is not None:
            compute_s = summary.compute_s[slowest]
            rest_s = expected.step_s - expected.compute_s
            rows.append(_held("Compute of the slowest worker", expected.compute_s, compute_s, numbers.seconds))
            rows.append(
                _held("All else (communication not hidden)", rest_s, summary.step_s - compute_s, numbers.seconds)
            )
        received = expected.rx_bytes_per_step
        rows.append(_held("Received by the busiest worker", received, summary.busiest_rx_bytes, numbers.nbytes))
        head: list[Cell] = ["", "predicted", "measured", "difference"]
        parts.append(table(f"What the plan predicted for {run.label}, and what happened", head, rows))
    return section("prediction", "Predicted against measured", *parts)


def _held(name: str, predicted: float, measured: float, write: Callable[[float | None], str]) -> list[Cell]:
    off = words.deviation(predicted, measured)
    return [name, write(predicted), write(measured), numbers.difference(off)]


def links(runs: Sequence[RunData]) -> Html:
    """Bytes per link and step."""
    parts = []
    for i, run in enumerate(runs):
        cells = link_bytes(run)
        if not cells:
            summary = summarise(run)
            total = (
                f" (each worker received {numbers.nbytes(summary.rx_bytes)} a step)"
                if summary and summary.rx_bytes
                else ""
            )
            parts.append(empty(f"{run.label} did not count bytes per link{total}."))
            continue
        busiest = max(cells, key=lambda pair: cells[pair])
        mean = fmean(cells.values())
        text = f"{len(cells)} directions carried {numbers.nbytes(mean)} each on average"
        if cells[busiest] > 1.02 * mean:
            text += f"; the busiest, {busiest[0]} → {busiest[1]}, carried {numbers.nbytes(cells[busiest])}."
        else:
            text += ", all about as much."
        parts.append(
            by_link(
                f"links-{i}",
                f"Bytes per link in one step of {run.label}",
                cells,
                run.run.size,
                numbers.nbytes,
                text,
            )
        )
    return section("links", "Bytes on the links", *parts)


def by_link(
    name: str,
    title: str,
    cells: dict[tuple[int, int], float],
    size: int,
    write: Callable[[float | None], str],
    text: str,
    *,
    least_first: bool = False,
) -> Html:
    """Return a heat map for a small world, a table of the extreme links for a large one."""
    figure = charts.matrix(cells, size, write)
    if figure is not None:
        return chart(name, title, figure, text, "", "matrix")
    ordered = sorted(cells.items(), key=lambda item: item[1], reverse=not least_first)[:MOST_LINKS]
    rows: list[list[Cell]] = [[f"{source} → {dest}", write(value)] for (source, dest), value in ordered]
    which = f"the {len(rows)} {'lowest' if least_first else 'highest'} of {len(cells)}"
    return Html(paragraph(text).text + table(f"{title}: {which}", ["link", ""], rows).text)


def about(runs: Sequence[RunData]) -> Html:
    """Which runs these are: directories, machines, versions, notes."""
    parts = []
    rows: list[list[Cell]] = []
    for run in runs:
        event, model = run.run, run.run.model
        versions = ", ".join(f"{name} {version}" for name, version in sorted(event.versions.items()))
        params = f"{model.get('name', 'unnamed')}, {numbers.count(model.get('params'))} parameters"
        rows.append([run.label, code(str(run.path)), event.run_id, str(event.size), event.device, params, versions])
    head: list[Cell] = ["run", "directory", "id", "workers", "device", "model", "versions"]
    parts.append(table("The runs", head, rows, numeric_from=9))
    noted: list[list[Cell]] = [
        [run.label, str(note.step), f"rank {rank}", note.text] for run in runs for rank, note in run.notes
    ]
    if noted:
        parts.append(table("Notes written while running", ["run", "step", "by", "note"], noted, numeric_from=9))
    return section("about", "The runs", *parts)
