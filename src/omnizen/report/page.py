"""The whole page: one HTML file that holds its style, its scripts and its data and asks for nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from omnizen.errors import UserError
from omnizen.measure.files import check_apart, check_can_write, write_whole
from omnizen.report import candidates, more_machines, numbers, planned, searched, sections, words
from omnizen.report.analysis import predicted, summarise
from omnizen.report.load import RunData, load_runs
from omnizen.report.markup import Html, html, paragraph
from omnizen.report.trace import write_trace

SECTIONS = (
    ("comparison", "Side by side"),
    ("search", "Search"),
    ("time", "Time"),
    ("loss", "Loss"),
    ("prediction", "Prediction"),
    ("candidates", "Candidates"),
    ("links", "Links"),
    ("plan", "Plan"),
    ("facts", "Facts"),
    ("more", "More machines"),
    ("about", "Runs"),
)
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""Forbids the page to load anything from anywhere."""


def write_report(run_dirs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Read runs and write their report, and a ``trace.json`` beside each run that recorded spans.

    Args:
        run_dirs: run directories; several are shown side by side.
        out: the HTML file; by default ``report.html`` in the run directory, or in the folder that several share.

    Raises:
        UserError: a directory is no run, or the file cannot be written.

    Example:
        >>> write_report(["demo/ddp", "demo/omnizen"])  # doctest: +SKIP
        PosixPath('demo/report.html')
    """
    return save_report(load_runs(run_dirs), out)


def save_report(runs: Sequence[RunData], out: str | Path | None = None) -> Path:
    """Write the report of runs that were read already; see ``write_report``."""
    path = Path(out) if out is not None else _default_path(runs)
    check_apart(path, *(file for run in runs for file in run.path.glob("*") if file.suffix in (".jsonl", ".toml")))
    check_can_write(path)
    write_whole(path, render(runs))
    for run in runs:
        try:
            write_trace(run)
        except UserError as error:  # the run may be another user's, and the report is there
            run.problems.append(str(error))
    return path


def render(runs: Sequence[RunData]) -> str:
    """Return the HTML of one or several runs.

    Args:
        runs: as ``load_runs`` returns them.
    """
    from plotly.offline import get_plotlyjs

    body = [
        sections.comparison(runs),
        searched.searched(runs),
        sections.time(runs),
        sections.loss(runs),
        sections.prediction(runs),
        candidates.candidates(runs),
        sections.links(runs),
        planned.plan(runs),
        planned.facts(runs),
        more_machines.more_machines(runs),
        sections.about(runs),
    ]
    title = f"Omnizen report: {', '.join(run.label for run in runs)}"
    missing = {"comparison"} if len(runs) == 1 else set()
    missing |= set() if any(map(searched.decisions, runs)) else {"search"}
    shown = [(name, text) for name, text in SECTIONS if name not in missing]
    contents = "".join(f'<li><a href="#{name}">{text}</a></li>' for name, text in shown)
    assets = files("omnizen.report") / "assets"
    style, script = ((assets / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{html(title)}</title><style>{style}</style></head><body>"
        f"<header>{_header(runs)}</header>"
        f'<nav aria-label="Sections"><ul>{contents}</ul></nav>'
        f"<main>{''.join(part.text for part in body)}</main>"
        "<noscript><p>The charts need JavaScript; each has its summary in words below it.</p></noscript>"
        f"<script>{get_plotlyjs()}</script><script>{script}</script></body></html>\n"
    )


def _header(runs: Sequence[RunData]) -> str:
    first, *rest = words.headline(runs)
    parts = [f'<p class="brand">Omnizen report</p><h1>{html(first)}</h1>']
    parts += [paragraph(text, "lead").text for text in rest]
    parts += [paragraph(text, "warning").text for text in words.comparable(runs)]
    parts.append(_tiles(runs))
    parts += _once(runs, "Network", words.network)
    if any(run.run.dilation != 1 for run in runs):
        parts += _once([run for run in runs if run.run.dilation != 1], "", words.dilation)
    missing = [f"{run.label}: {problem}" for run in runs for problem in run.problems]
    if missing:
        items = "".join(f"<li>{html(text)}</li>" for text in missing)
        parts.append(
            f'<div class="warning" role="note"><strong>What could not be read</strong><ul>{items}</ul></div>'
        )
    return "".join(parts)


def _once(runs: Sequence[RunData], title: str, say: Callable[[RunData], str]) -> list[str]:
    """Say something of all runs once where it is the same, else once for each."""
    texts: dict[str, list[str]] = {}
    for run in runs:
        texts.setdefault(say(run), []).append(run.label)
    parts = []
    for text, labels in texts.items():
        lead = " ".join(filter(None, (title, f"({', '.join(labels)})" if len(texts) > 1 else "")))
        kind = "warning" if "not a measurement of a wire" in text else "small"
        strong = f"<strong>{html(lead)}:</strong> " if lead else ""
        parts.append(paragraph(Html(strong + html(text)), kind).text)
    return parts


def _tiles(runs: Sequence[RunData]) -> str:
    chosen = words.pair(runs)
    subject = chosen[0] if chosen else runs[0]
    ours = summarise(subject)
    theirs = summarise(chosen[1]) if chosen else None
    if ours is None:
        return ""
    tiles = []
    if chosen and theirs and not words.comparable(chosen):
        factor = theirs.step_s / ours.step_s
        tiles.append((f"{numbers.times(factor)} {numbers.TIMES}", f"the speed of {chosen[1].label}"))
    tiles.append((numbers.seconds(ours.step_s), f"a step of {subject.label}"))
    if ours.rx_bytes:
        tiles.append((numbers.nbytes(ours.rx_bytes), "received per worker and step"))
    if not chosen and ours.samples_per_s:
        tiles.append((numbers.significant(ours.samples_per_s), "samples per second, all workers"))
    expected = predicted(subject, ours)
    if expected is not None:
        off = words.deviation(expected.step_s, ours.step_s)
        tiles.append((numbers.difference(off), "measured step against predicted"))
    items = "".join(f"<div><dt>{html(name)}</dt><dd>{html(value)}</dd></div>" for value, name in tiles)
    return f'<dl class="tiles">{items}</dl>'


def _default_path(runs: Sequence[RunData]) -> Path:
    folders = [run.path.resolve() for run in runs]
    return Path(os.path.commonpath(folders)) / "report.html"
