"""What one run left in its directory, read as far as it goes: a run that was cut short still gives a report."""

from __future__ import annotations

import difflib
import gc
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from omnizen.errors import UserError
from omnizen.events import (
    BalanceEvent,
    EndEvent,
    Event,
    NoteEvent,
    PlanEvent,
    RunEvent,
    SearchEvent,
    SpanEvent,
    StepEvent,
    events_path,
    read_events,
)
from omnizen.measure.facts import Facts
from omnizen.measure.tomlfile import TomlFile
from omnizen.plan.plan import Plan

T = TypeVar("T", bound=TomlFile)
MOST_NAMED = 10
"""So many ranks, or lines of one file, are named one by one."""


@dataclass(slots=True)
class RankLog:
    """What one rank wrote of one run."""

    rank: int
    run: RunEvent
    steps: list[StepEvent] = field(default_factory=list)
    spans: list[SpanEvent] = field(default_factory=list)
    plans: list[PlanEvent] = field(default_factory=list)
    balances: list[BalanceEvent] = field(default_factory=list)
    notes: list[NoteEvent] = field(default_factory=list)
    searches: list[SearchEvent] = field(default_factory=list)
    end: EndEvent | None = None


@dataclass(slots=True)
class RunData:
    """One run of all ranks.

    Args:
        path: the run directory.
        label: name in tables and charts; unique among the runs of one report.
        run: the run event of the lowest rank that there is.
        ranks: by rank; ranks without a readable file are absent.
        facts: contents of ``facts.toml``, None where there is none.
        plan: contents of ``plan.toml``, None where there is none.
        problems: sentences on what was missing or unreadable.
        figures: what ``analysis`` has computed from the events, by name.
    """

    path: Path
    label: str
    run: RunEvent
    ranks: dict[int, RankLog]
    facts: Facts | None
    plan: Plan | None
    problems: list[str]
    figures: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def cut_short(self) -> str:
        """Which ranks did not reach the end, and after which steps; empty where all did.

        A run that still goes looks the same.
        """
        cut = {rank: log.steps[-1].step if log.steps else -1 for rank, log in self.ranks.items() if log.end is None}
        if not cut:
            return ""
        first, last = min(cut.values()), max(cut.values())
        after = f"after step {last}" if first == last else f"after step {first} to {last}"
        where = "before its first step" if last < 0 else after if first >= 0 else f"before step {last + 1}"
        who = "" if len(cut) == len(self.ranks) else f" on {_ranks(list(cut))}"
        return f"cut short{who} {where}, or still going"

    @property
    def notes(self) -> list[tuple[int, NoteEvent]]:
        """Notes of all ranks in the order of their steps, those that several ranks share once."""
        seen: dict[tuple[int, str], tuple[int, NoteEvent]] = {}
        for rank, log in self.ranks.items():
            for note in log.notes:
                seen.setdefault((note.step, note.text), (rank, note))
        return sorted(seen.values(), key=lambda pair: pair[1].step)


def load_run(path: str | Path) -> RunData:
    """Read a run directory.

    Raises:
        UserError: no such directory, or nothing of a run in it.
    """
    folder = Path(path)
    if not folder.exists():
        raise UserError(f"no run directory {str(folder)!r}{_hint(folder)}")
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r} is a file; give the run's directory, which holds events-rank0.jsonl")
    files = _event_files(folder)
    if not files:
        inside = sorted(p.name for p in folder.iterdir() if p.is_dir() and _event_files(p))
        hint = f"; its folders {', '.join(inside)} hold runs: give those" if inside else ""
        raise UserError(f"{str(folder)!r} holds no events-rank*.jsonl, so no run has written there{hint}")
    problems: list[str] = []
    logs = {}
    for rank, file in files.items():
        try:
            log = read_events(file)
        except OSError as error:
            problems.append(f"{file.name} cannot be read: {error.strerror}")
            continue
        problems += _few(log.problems, file.name)
        found = _last_run(rank, log.events, problems)
        if found is not None:
            logs[rank] = found
    if not logs:
        raise UserError(
            f"no run can be read in {str(folder)!r}: {'; '.join(problems[:3]) or 'the files are empty'}"
        )
    logs = _of_one_run(logs, problems)
    run = logs[min(logs)].run
    _name_gaps(run, logs, problems)
    facts = _file(Facts, folder / "facts.toml", problems)
    plan = _file(Plan, folder / "plan.toml", problems)
    if plan is not None and not any(log.plans for log in logs.values()):
        problems.append("plan.toml is left out: this run's events do not say that it came into force")
        plan = None
    data = RunData(folder, run.method, run, logs, facts, plan, problems)
    if data.cut_short:
        problems.append(f"{data.cut_short} (the end is missing; run.close() writes it)")
    return data


def load_runs(paths: Sequence[str | Path]) -> list[RunData]:
    """Read several run directories and give each a label: the method, or the folder where methods repeat.

    Raises:
        UserError: no path, or one of them is no run.
    """
    if not paths:
        raise UserError("give at least one run directory")
    collecting = gc.isenabled()
    gc.disable()  # it would look through millions of events again and again, of which none is garbage
    try:
        runs = [load_run(path) for path in paths]
    finally:
        if collecting:
            gc.enable()
    for name in (lambda r: r.run.method, lambda r: r.path.resolve().name, lambda r: str(r.path)):
        labels = [name(run) for run in runs]
        if len(set(labels)) == len(labels):
            break
    else:
        raise UserError(f"the same run directory is given twice: {', '.join(map(str, paths))}")
    for run, label in zip(runs, labels, strict=True):
        run.label = label
    return runs


def _event_files(folder: Path) -> dict[int, Path]:
    ranks = [re.fullmatch(r"events-rank(\d+)\.jsonl", p.name) for p in folder.glob("events-rank*.jsonl")]
    return {rank: events_path(folder, rank) for rank in sorted(int(m[1]) for m in ranks if m)}


def _last_run(rank: int, events: Sequence[Event], problems: list[str]) -> RankLog | None:
    log: RankLog | None = None
    orphans = earlier = 0
    for event in events:
        if isinstance(event, RunEvent):
            earlier += log is not None
            log = RankLog(rank, event)
        elif log is None:
            orphans += 1
        elif isinstance(event, StepEvent):
            log.steps.append(event)
        elif isinstance(event, SpanEvent):
            log.spans.append(event)
        elif isinstance(event, PlanEvent):
            log.plans.append(event)
        elif isinstance(event, BalanceEvent):
            log.balances.append(event)
        elif isinstance(event, NoteEvent):
            log.notes.append(event)
        elif isinstance(event, SearchEvent):
            log.searches.append(event)
        else:
            log.end = event
    if earlier:
        problems.append(f"rank {rank}: {earlier} earlier run(s) in the same file are left out")
    if orphans:
        problems.append(f"rank {rank}: {orphans} event(s) before the run's first line are left out")
    if log is None:
        problems.append(f"rank {rank}: nothing says which run this is, so the rank is left out")
    return log


def _of_one_run(logs: dict[int, RankLog], problems: list[str]) -> dict[int, RankLog]:
    """Keep the ranks of the newest run; files of an earlier run with more ranks may still lie there."""
    newest = max(logs.values(), key=lambda log: log.run.started_unix_s).run.run_id
    strangers = [rank for rank, log in logs.items() if log.run.run_id != newest]
    if strangers:
        problems.append(f"left out, because of another run: {_ranks(strangers)} (this run is {newest})")
    return {rank: log for rank, log in logs.items() if log.run.run_id == newest}


def _name_gaps(run: RunEvent, logs: dict[int, RankLog], problems: list[str]) -> None:
    absent = [rank for rank in range(run.size) if rank not in logs]
    if absent:
        problems.append(
            f"no events of {_ranks(absent)}: the figures are those of the other {len(logs)} of {run.size}"
        )


def _ranks(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - MOST_NAMED} others" if len(ranks) > MOST_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:MOST_NAMED]))}{more}"


def _few(problems: list[str], what: str) -> list[str]:
    """Name the first few problems of a file and count the others."""
    more = [f"{what}: {len(problems) - MOST_NAMED} more lines cannot be used"] if len(problems) > MOST_NAMED else []
    return problems[:MOST_NAMED] + more


def _file(kind: type[T], path: Path, problems: list[str]) -> T | None:
    if not path.exists():
        return None
    try:
        return kind.load(path)
    except UserError as error:
        problems.append(f"{path.name} cannot be used: {error}")
        return None


def _hint(folder: Path) -> str:
    beside = [p.name for p in folder.parent.iterdir() if p.is_dir()] if folder.parent.is_dir() else []
    close = difflib.get_close_matches(folder.name, beside, n=1, cutoff=0.5)
    return f"; did you mean {str(folder.parent / close[0])!r}?" if close else ""
