"""The report's sentences: what was faster, by how much and why, on which network, and who was slow."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from omnizen.report import numbers
from omnizen.report.analysis import SLOWER_FROM, Summary, predicted, summarise
from omnizen.report.load import RunData

ON_THE_WIRE = ("wire", "wait")
MATTERS_FROM = 0.05
"""Others are said to wait for a slow worker when it costs at least this part of a step."""
PACED = "loopback, paced in software"


def pair(runs: Sequence[RunData]) -> tuple[RunData, RunData] | None:
    """Return (subject, reference): the last Omnizen run and the first other run; None for a single run."""
    if len(runs) < 2:
        return None
    ours = [run for run in runs if run.run.method.startswith("omnizen")]
    subject = ours[-1] if ours else runs[-1]
    others = [run for run in runs if run is not subject and run not in ours] or [
        r for r in runs if r is not subject
    ]
    return subject, others[0]


def headline(runs: Sequence[RunData]) -> list[str]:
    """Return the sentences that open the report."""
    chosen = pair(runs)
    return _compared(*chosen) if chosen else _alone(runs[0])


def _compared(subject: RunData, reference: RunData) -> list[str]:
    ours, theirs = summarise(subject), summarise(reference)
    if ours is None or theirs is None:
        without = " and ".join(_named(r) for r, s in ((subject, ours), (reference, theirs)) if s is None)
        return [f"{without} finished no step, so there is nothing to compare."]
    a, b = _named(subject), _named(reference)
    paced = "Over links paced in software, " if PACED in (subject.run.network, reference.run.network) else ""
    took = f"{paced}{a} took {numbers.seconds(ours.step_s)} a step, {b} {numbers.seconds(theirs.step_s)}"
    if comparable([subject, reference]):
        return [f"{took}, but not under the same conditions."]
    factor = theirs.step_s / ours.step_s
    if factor >= 1.02:
        first = f"{took}: {numbers.times(factor)} times as fast."
    elif factor <= 1 / 1.02:
        first = f"{took}: {numbers.times(1 / factor)} times as slow."
    else:
        first = f"{took}: equally fast within 2 %."
    return [first, *_why(ours, theirs)]


def _why(ours: Summary, theirs: Summary) -> list[str]:
    sentences = []
    if ours.rx_bytes and theirs.rx_bytes:
        factor = theirs.rx_bytes / ours.rx_bytes
        than = f"{numbers.times(factor)} times less" if factor >= 1 else f"{numbers.times(1 / factor)} times more"
        amount = "about as much" if 0.98 < factor < 1.02 else than
        sentences.append(
            f"Each worker received {numbers.nbytes(ours.rx_bytes)} a step instead of "
            f"{numbers.nbytes(theirs.rx_bytes)} ({amount})"
        )
    saved_s = theirs.step_s - ours.step_s
    if ours.parts and theirs.parts and abs(saved_s) > 0.02 * theirs.step_s:
        by_part = {part: _mean(theirs, part) - _mean(ours, part) for part in next(iter(ours.parts.values()))}
        on_wire = sum(by_part[part] for part in ON_THE_WIRE)
        verb = "fell" if saved_s > 0 else "rose"
        if on_wire / saved_s > 0.5:
            before, after = (numbers.seconds(sum(_mean(s, part) for part in ON_THE_WIRE)) for s in (theirs, ours))
            sentences.append(f"sending, receiving and waiting for a peer {verb} from {before} to {after} a step")
        else:
            part = max(by_part, key=lambda p: by_part[p] / saved_s)
            before, after = (numbers.seconds(_mean(s, part)) for s in (theirs, ours))
            sentences.append(f"{part} {verb} from {before} to {after} a step")
    text = "; ".join(sentences)
    return [text + "."] if text else []


def _mean(summary: Summary, part: str) -> float:
    return fmean(parts[part] for parts in summary.parts.values())


def _alone(run: RunData) -> list[str]:
    summary = summarise(run)
    if summary is None:
        return [f"{_named(run)} finished no step."]
    workers = f"{run.run.size} worker{'s' if run.run.size > 1 else ''}"
    paced = "Over links paced in software, " if run.run.network == PACED else ""
    first = f"{paced}{_named(run)} took {numbers.seconds(summary.step_s)} a step on {workers}"
    if run.plan is None:
        return [first + "."]
    expected = predicted(run, summary)
    if expected is None:
        return [f"{first}, all of them before the plan came into force."]
    return [f"{first}; the plan predicted {against(expected.step_s, summary.step_s)}."]


def _named(run: RunData) -> str:
    """Return the run's label, and with it that the run did not reach its end."""
    return f"{run.label} ({run.cut_short})" if run.cut_short else run.label


def against(predicted: float, measured: float) -> str:
    """Return a prediction and how far the measured value lies from it.

    Example:
        >>> against(1.0, 1.1)
        '1.00 s (measured 10.0 % above)'
    """
    off = deviation(predicted, measured) or 0.0
    side = "above" if off >= 0 else "below"
    return f"{numbers.seconds(predicted)} (measured {abs(off) * 100:.1f} % {side})"


def deviation(predicted: float, measured: float) -> float | None:
    """Return the part by which the measured value lies above the predicted; None where 0 was predicted."""
    return measured / predicted - 1 if predicted else None


def network(run: RunData) -> str:
    """Say over which network a run went; a paced one is never called a wire."""
    event = run.run
    rate = ""
    if event.rate_bytes_per_s is not None:
        rate = f" to {_rates(run, 1.0)}"
        if event.dilation != 1:
            rate += f" ({_rates(run, event.dilation)} divided by the dilation of {numbers.factor(event.dilation)})"
    if event.network == "namespaces, shaped links":
        return f"each worker in a network namespace of its own, every link shaped by the kernel{rate}."
    if event.network == PACED:
        return (
            f"loopback inside one machine, sending paced in software{rate}. "
            "These times show what the plan saves; they are not a measurement of a wire."
        )
    if event.network == "as is":
        return "as it is; nothing shaped or paced the links."
    return f"{event.network}{f', set{rate}' if rate else ''}."


def _rates(run: RunData, times: float) -> str:
    rates = {log.run.rate_bytes_per_s * times for log in run.ranks.values() if log.run.rate_bytes_per_s is not None}
    low, high = numbers.bit_rate(min(rates)), numbers.bit_rate(max(rates))
    return low if low == high else f"between {low} and {high}"


def dilation(run: RunData) -> str:
    """Explain the dilation; empty where there is none."""
    factor = run.run.dilation
    if factor == 1:
        return ""
    f, n = numbers.factor(factor), run.run.size
    return (
        f"Time dilation {f}: {n} workers share fewer cores and compute {f} times slower than {n} machines would. "
        f"The links were slowed by the same factor, so times divided by {f} are those of {n} machines. "
        "Times are as measured unless a line says otherwise."
    )


def comparable(runs: Sequence[RunData]) -> list[str]:
    """Say why runs that stand side by side cannot be compared fairly; empty when they can."""
    said = []
    for what, values in {
        "networks": [run.run.network for run in runs],
        "link rates": [numbers.bit_rate(run.run.rate_bytes_per_s) for run in runs],
        "numbers of workers": [str(run.run.size) for run in runs],
        "dilations": [numbers.factor(run.run.dilation) for run in runs],
        "numbers of parameters": [str(run.run.model.get("params", "unknown")) for run in runs],
    }.items():
        if len(set(values)) > 1:
            each = ", ".join(f"{run.label}: {value}" for run, value in zip(runs, values, strict=True))
            said.append(f"These runs had different {what} ({each}), so their times do not compare directly.")
    return said


def slowest(run: RunData, summary: Summary) -> str:
    """Name the worker that computes longest, and whether the others wait for it."""
    rank = summary.slowest
    if rank is None:
        return ""
    if len(summary.compute_s) < 2:
        return f"{worker(run, rank)} computes {numbers.seconds(summary.compute_s[rank])} in a step."
    others_s = median(s for other, s in summary.compute_s.items() if other != rank)
    own = numbers.seconds(summary.compute_s[rank])
    if summary.slowness < SLOWER_FROM:
        return (
            f"The workers compute about equally long: the slowest, {worker(run, rank)}, {own} a step, "
            f"the others {numbers.seconds(others_s)}."
        )
    share = (summary.compute_s[rank] - others_s) / summary.step_s
    matters = "and they wait for it" if share >= MATTERS_FROM else f"which is {numbers.percent(share)} of a step"
    return (
        f"The slowest worker is {worker(run, rank)}: it computes {own} a step, "
        f"{numbers.times(summary.slowness)} times as long as the others ({numbers.seconds(others_s)}), {matters}."
    )


def worker(run: RunData, rank: int) -> str:
    """Return a rank with its host, e.g. ``rank 2 (host worker2)``."""
    log = run.ranks.get(rank)
    return f"rank {rank} (host {log.run.host})" if log else f"rank {rank}"
