"""The sections on what was measured beforehand and what was planned from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from omnizen.measure.facts import ITEMSIZES, Facts, GradientFacts
from omnizen.plan.plan import Plan, TensorPlan
from omnizen.report import charts, numbers
from omnizen.report.load import RunData
from omnizen.report.markup import Cell, Html, chart, code, details, empty, paragraph, section, table, wrapping
from omnizen.report.sections import by_link

TABLES_UP_TO = 30
"""Longer lists of tensors show their costliest entries and open the rest on request."""


def plan(runs: Sequence[RunData]) -> Html:
    """The plan of each run that has one: what was chosen for each tensor, and what was rejected and why."""
    parts = []
    for i, run in enumerate(runs):
        if run.plan is None:
            parts.append(empty(f"{run.label} ran without a plan (there is no plan.toml in its directory)."))
        else:
            parts += _plan(f"plan-{i}", run.label, run.plan)
    return section("plan", "The plan and its alternatives", *parts)


def _plan(name: str, label: str, chosen: Plan) -> list[Html]:
    if not chosen.tensors:
        return [empty(f"The plan of {label} names no tensor.")]
    schemes: dict[str, int] = {}
    for tensor in chosen.tensors:
        schemes[tensor.scheme] = schemes.get(tensor.scheme, 0) + 1
    used = ", ".join(f"{scheme} for {count}" for scheme, count in sorted(schemes.items(), key=lambda s: -s[1]))
    tensors = sorted(chosen.tensors, key=lambda t: (-t.predicted_s, t.name))
    parts = [
        paragraph(
            f"The plan of {label} chose {used} of {len(tensors)} tensors. Dense gradients travel in buckets that "
            f"close at {numbers.nbytes(chosen.bucket_bytes)}."
        )
    ]
    weighed = [tensor for tensor in tensors if tensor.rejected]
    if weighed:
        parts.append(_weighed(name, weighed[0]))
    rows = [_row(tensor) for tensor in tensors]
    head: list[Cell] = ["tensor", "kind", "chosen", "predicted", "busiest receives", "rejected"]
    parts.append(table(f"Tensors of {label}, the costliest first", head, rows[:TABLES_UP_TO], numeric_from=3))
    if len(rows) > TABLES_UP_TO:
        more = table(f"The other tensors of {label}", head, rows[TABLES_UP_TO:], numeric_from=3)
        parts.append(details(f"{len(rows) - TABLES_UP_TO} more tensors", more))
    parts += [_rejected(tensor) for tensor in weighed[:TABLES_UP_TO]]
    if not weighed:
        parts.append(empty("No alternatives were weighed: each tensor had one scheme that fits."))
    return parts


def _row(tensor: TensorPlan) -> list[Cell]:
    count = str(len(tensor.rejected)) if tensor.rejected else "none weighed"
    predicted = numbers.seconds(tensor.predicted_s)
    if tensor.measured_s is not None:
        predicted += f" (tried: {numbers.seconds(tensor.measured_s)})"
    return [code(tensor.name), tensor.kind, tensor.scheme, predicted, numbers.nbytes(tensor.rx_bytes), count]


def _weighed(name: str, tensor: TensorPlan) -> Html:
    others = sorted(tensor.rejected, key=lambda r: r.predicted_s)
    figure = charts.alternatives(
        [tensor.scheme, *(r.scheme for r in others)], [tensor.predicted_s, *(r.predicted_s for r in others)]
    )
    best, worst = others[0], others[-1]
    text = (
        f"{tensor.scheme} was chosen at {numbers.seconds(tensor.predicted_s)}; next was {best.scheme} at "
        f"{numbers.seconds(best.predicted_s)}, last {worst.scheme} at {numbers.seconds(worst.predicted_s)}."
    )
    return chart(name, Html(f"Schemes weighed for {code(tensor.name).text}"), figure, text, "")


def _rejected(tensor: TensorPlan) -> Html:
    rows: list[list[Cell]] = [
        [
            r.scheme,
            numbers.seconds(r.predicted_s),
            numbers.nbytes(r.rx_bytes),
            wrapping(r.reason),
        ]
        for r in sorted(tensor.rejected, key=lambda r: r.predicted_s)
    ]
    head: list[Cell] = ["scheme", "predicted", "busiest receives", "why not"]
    grid = table(f"Rejected for {tensor.name}", head, rows)
    return details(Html(f"{len(rows)} schemes rejected for {code(tensor.name).text}"), grid)


def facts(runs: Sequence[RunData]) -> Html:
    """What was measured: devices, links, gradients; facts that several runs share are shown once."""
    seen: dict[str, tuple[list[str], Facts]] = {}
    for run in runs:
        if run.facts is not None:
            seen.setdefault(run.facts.digest(), ([], run.facts))[0].append(run.label)
    if not seen:
        return section("facts", "What was measured", empty("Nothing: no run directory holds a facts.toml."))
    parts = []
    for i, (labels, measured) in enumerate(seen.values()):
        when = measured.created.replace("T", " ") or "at an unknown time"
        parts.append(paragraph(f"Facts behind {' and '.join(labels)}, measured {when}."))
        parts += [_devices(measured), _links(f"facts-{i}", measured), _gradients(measured)]
    return section("facts", "What was measured", *parts)


def _devices(measured: Facts) -> Html:
    if not measured.devices:
        return empty("No device was measured.")
    batches = sorted({b for device in measured.devices for b in device.samples_per_s}, key=float)
    rows: list[list[Cell]] = [
        [
            str(d.rank),
            d.host,
            f"{d.device}, {d.name}",
            numbers.factor(d.cores),
            numbers.nbytes(d.memory_bytes),
            f"{numbers.nbytes(d.merge_bytes_per_s)}/s",
            *(_rate(d.samples_per_s.get(batch)) for batch in batches),
        ]
        for d in measured.devices
    ]
    head: list[Cell] = [
        "rank",
        "host",
        "device",
        "cores",
        "memory",
        "merges",
        *(f"samples/s at {b}" for b in batches),
    ]
    return table("Devices", head, rows, numeric_from=3)


def _rate(samples_per_s: float | None) -> str:
    return numbers.MISSING if samples_per_s is None else numbers.significant(samples_per_s)


def _links(name: str, measured: Facts) -> Html:
    if not measured.links:
        return empty("No link was measured (a single worker has none).")
    rates = {(link.source, link.dest): link.bandwidth_bytes_per_s for link in measured.links}
    delays = {(link.source, link.dest): link.latency_s for link in measured.links}
    low, high = min(rates, key=lambda pair: rates[pair]), max(delays, key=lambda pair: delays[pair])
    guessed = sum(link.estimated for link in measured.links)
    text = (
        f"{len(rates)} directions; the slowest is {low[0]} → {low[1]} with {numbers.bit_rate(rates[low])}, "
        f"the fastest has {numbers.bit_rate(max(rates.values()))}. A round costs up to "
        f"{numbers.seconds(delays[high])} ({high[0]} → {high[1]}) beyond its bytes."
    )
    if guessed:
        text += f" {guessed} of them were derived from pairs that were measured."
    title = "Measured bandwidth of the links"
    return by_link(name, title, rates, measured.world_size, numbers.bit_rate, text, least_first=True)


def _gradients(measured: Facts) -> Html:
    if not measured.gradients:
        return empty("No gradient was observed.")
    ordered = sorted(measured.gradients, key=lambda g: (-_dense_bytes(g), g.name))
    rows: list[list[Cell]] = []
    for g in ordered:
        shape = f"\xa0{numbers.TIMES} ".join(f"{n:,}" for n in g.shape) or "a number"
        growth = ", ".join(f"{numbers.significant(v)} at {k}" for k, v in g.densification.items() if k != "1")
        row: list[Cell] = [code(g.name), g.kind, shape, g.dtype, numbers.nbytes(_dense_bytes(g))]
        if g.kind == "dense":
            row += [numbers.percent(g.density), *[numbers.MISSING] * 3]
        else:
            row += [numbers.percent(g.density), growth or numbers.MISSING, numbers.significant(g.skewness)]
            row.append(numbers.percent(g.overlap))
        rows.append(row)
    head: list[Cell] = ["gradient", "kind", "shape", "dtype", "whole", "density", "growth", "skew", "overlap"]
    legend = (
        "Density: part of the rows that one worker touches in a step. Growth: rows that k workers touch together, "
        "over those of one. Skew: load of the fullest of equal ranges over the mean. Overlap: rows that two "
        "workers share."
    )
    parts = [table("Gradients, the largest first", head, rows[:TABLES_UP_TO], numeric_from=4)]
    if len(rows) > TABLES_UP_TO:
        more = table("The other gradients", head, rows[TABLES_UP_TO:], numeric_from=4)
        parts.append(details(f"{len(rows) - TABLES_UP_TO} more gradients", more))
    return Html("".join(part.text for part in [*parts, paragraph(legend, "small")]))


def _dense_bytes(gradient: GradientFacts) -> int:
    return math.prod(gradient.shape) * ITEMSIZES[gradient.dtype]
