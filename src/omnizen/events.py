"""What a run writes down while it goes: one JSON object a line, one file per rank."""

from __future__ import annotations

import json
import os
import re
import reprlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from omnizen.errors import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """The first line of a file: who runs what, over which network.

    Args:
        method: what synchronises, e.g. ``omnizen`` or ``ddp``.
        network: ``as is``, ``namespaces, shaped links`` or ``loopback, paced in software``.
        rate_bytes_per_s: rate of the links as shaped, after dilation; None where nothing shapes them.
        dilation: factor by which the link rates were divided; times divided by it are those of real machines.
        model: ``params`` (number of parameters) and ``name``.
        started_unix_s: clock time at which this rank's second 0 was.
    """

    event: ClassVar[str] = "run"
    run_id: str
    rank: int
    size: int
    host: str
    device: str
    method: str
    started_unix_s: float
    network: str = "as is"
    rate_bytes_per_s: float | None = None
    dilation: float = 1.0
    versions: dict[str, str] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """One optimizer step of one rank; seconds since the run's start, payload bytes of this step.

    The parts (compute to decode) are what the rank's own clock saw; what the writer cannot tell apart stays 0.
    ``wait_s`` is time spent waiting for a peer, ``wire_s`` time in which bytes moved and nothing else was done;
    ``logged`` is what the user logged beside the loss, by name.
    """

    event: ClassVar[str] = "step"
    step: int
    start_s: float
    step_s: float
    compute_s: float = 0.0
    select_s: float = 0.0
    encode_s: float = 0.0
    wait_s: float = 0.0
    wire_s: float = 0.0
    decode_s: float = 0.0
    loss: float | None = None
    logged: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    tx_bytes: int = 0
    rx_bytes: int = 0
    rx_bytes_by_peer: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    """One stretch of one thread within a step, for the trace."""

    event: ClassVar[str] = "span"
    step: int
    category: str
    name: str
    start_s: float
    duration_s: float
    thread: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEvent:
    """From this step on the plan in the file ``path`` is in force."""

    event: ClassVar[str] = "plan"
    step: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceEvent:
    """Batch sizes, by rank, that were decided at the end of a step's backward; the first ones with step 0.

    Args:
        own_s: each rank's own seconds of a step, smoothed, that led to them; empty for the first ones.
    """

    event: ClassVar[str] = "balance"
    step: int
    sizes: list[int]
    own_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteEvent:
    """Something a reader of the run should know, in words."""

    event: ClassVar[str] = "note"
    step: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEvent:
    """A decision of the automatic optimizer.

    Args:
        start_s: seconds since the run's start.
        phase: of the search, such as "cold start" or "prices".
        decision: "probed", "rejected", "chose" and the like.
        text: in words, with numbers.
        loss: at the end of a probe; None where nothing was probed, or where it diverged.
        losses: of a probe, thinned.
    """

    event: ClassVar[str] = "search"
    start_s: float
    phase: str
    decision: str
    text: str
    loss: float | None = None
    losses: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvent:
    """The run ended in order; a file without it was cut short."""

    event: ClassVar[str] = "end"
    steps: int
    seconds: float


Event = RunEvent | StepEvent | SpanEvent | PlanEvent | BalanceEvent | NoteEvent | SearchEvent | EndEvent
EVENTS: dict[str, type[Event]] = {
    kind.event: kind
    for kind in (RunEvent, StepEvent, SpanEvent, PlanEvent, BalanceEvent, NoteEvent, SearchEvent, EndEvent)
}
MOST, MOST_RANKS = 1e18, 100_000
"""Larger numbers in a file are damage."""


def events_path(run_dir: str | Path, rank: int) -> Path:
    """Return the path of one rank's events in a run directory."""
    return Path(run_dir) / f"events-rank{rank}.jsonl"


class EventWriter:
    """Appends events to a file, each line handed to the system at once: a killed process loses at most one line.

    Threads may share a writer. A file that a killed process left with half a line is continued on a new line;
    a new ``RunEvent`` begins a new run in the same file.

    Example:
        >>> with EventWriter("run/events-rank0.jsonl") as events:  # doctest: +SKIP
        ...     events.write(StepEvent(step=0, start_s=0.0, step_s=0.3, loss=6.2))
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = self.path.open("ab", buffering=0)
        if self._file.tell() and not _ends_a_line(self.path):
            self._file.write(b"\n")

    def write(self, event: Event) -> None:
        """Append one event as one line."""
        line = memoryview((json.dumps(as_dict(event), separators=(",", ":")) + "\n").encode())
        with self._lock:
            while line:
                line = line[self._file.write(line) :]  # a disk that fills up takes a part, and then raises

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        self._file.close()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class EventLog:
    """What could be read of one file.

    Args:
        events: in the order in which they were written.
        problems: sentences on lines that could not be read, each with its line number.
    """

    events: list[Event]
    problems: list[str]


def read_events(path: str | Path) -> EventLog:
    """Read a file of events; lines that cannot be used are named in ``problems``, never an error.

    Raises:
        OSError: the file cannot be opened.
    """
    events: list[Event] = []
    problems: list[str] = []
    lines = Path(path).read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            events.append(from_dict(json.loads(line)))
        except (ValueError, RecursionError) as error:
            cut = number == len(lines)
            what = (
                "the last line is cut off (the process ended while writing)" if cut else f"line {number}: {error}"
            )
            problems.append(f"{Path(path).name}: {what}")
    return EventLog(events, problems)


def as_dict(event: Event) -> dict[str, Any]:
    """Return the JSON object of an event."""
    return {"event": event.event} | {f.name: getattr(event, f.name) for f in fields(event)}


def from_dict(raw: object) -> Event:
    """Return the event of a JSON object; keys that this version does not know are left out.

    Raises:
        ValueError: not an object, of no known kind, without a needed key, or with a value that cannot be.
    """
    if not isinstance(raw, Mapping):
        raise ValueError(f"expected an object, got {type(raw).__name__}")
    kind = EVENTS.get(str(raw.get("event")))
    if kind is None:
        raise ValueError(f"unknown event: {nearest(raw.get('event'), EVENTS)}")
    values: dict[str, Any] = {}
    missing = []
    for name, needed, (fits, words) in _RULES[kind.event]:
        if name in raw:
            if not fits(raw[name]):
                raise ValueError(f"{name} of the {kind.event} event is {reprlib.repr(raw[name])}, not {words}")
            values[name] = raw[name]
        elif needed:
            missing.append(name)
    if missing:
        raise ValueError(f"the {kind.event} event lacks {', '.join(missing)}")
    if "rx_bytes_by_peer" in values:
        values["rx_bytes_by_peer"] = {int(peer): count for peer, count in values["rx_bytes_by_peer"].items()}
    return kind(**values)


def _whole(value: object, least: int = 0, most: int = 2**53) -> bool:
    return type(value) is int and least <= value <= most


def _number(value: object, least: float = -MOST, most: float = MOST) -> bool:
    return type(value) in (int, float) and least <= value <= most  # type: ignore[operator]  # false for NaN


def _text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _model(value: object) -> bool:
    return isinstance(value, dict) and _whole(value.get("params", 0)) and _text(value.get("name", ""))


def _texts(value: object) -> bool:
    return isinstance(value, dict) and all(_text(v) for pair in value.items() for v in pair)


def _numbers(value: object) -> bool:
    return isinstance(value, dict) and all(_text(k) and (type(v) is float or _number(v)) for k, v in value.items())


def _each(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _peers(value: object) -> bool:
    return isinstance(value, dict) and all(
        re.fullmatch("[0-9]{1,5}", str(peer)) and _number(count, 0) for peer, count in value.items()
    )


_Rule = tuple[Callable[[Any], bool], str]
_SOME: _Rule = (lambda v: _whole(v, 0), "int from 0")
_RULES_BY_NAME: dict[str, _Rule] = {
    "dilation": (lambda v: _number(v, 1e-6), "float above 0"),
    "loss": (lambda v: v is None or type(v) is float or _number(v), "float | None"),  # NaN is worth seeing
    "logged": (_numbers, "dict of numbers by name"),
    "losses": (_each(_number), "list of losses"),
    "model": (_model, "dict of params (int) and name (str)"),
    "own_s": (_each(lambda v: _number(v, 0)), "list of seconds"),
    "rank": (lambda v: _whole(v, 0, MOST_RANKS), f"int from 0 to {MOST_RANKS}"),
    "rate_bytes_per_s": (lambda v: v is None or _number(v, 1e-6), "float above 0 | None"),
    "rx_bytes_by_peer": (_peers, "dict of bytes by rank"),
    "size": (lambda v: _whole(v, 1, MOST_RANKS), f"int from 1 to {MOST_RANKS}"),
    "sizes": (_each(lambda v: _whole(v, 1)), "list of ints from 1"),
    "step": _SOME,
    "step_s": (lambda v: _number(v, 1e-12), "float above 0"),
    "steps": _SOME,
    "versions": (_texts, "dict of str"),
}
_RULES_BY_TYPE: dict[str, _Rule] = {
    "str": (_text, "str"),
    "int": (lambda v: _number(v, 0), "int from 0"),  # of bytes and samples, whole or not
    "float": (_number, "float"),
}
_RULES: dict[str, list[tuple[str, bool, _Rule]]] = {
    kind.event: [
        (
            f.name,
            f.default is MISSING and f.default_factory is MISSING,
            _RULES_BY_NAME.get(f.name) or _RULES_BY_TYPE[str(f.type)],
        )
        for f in fields(kind)
    ]
    for kind in EVENTS.values()
}
"""Of each kind of event its fields: name, whether it is needed, what its value may be."""


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
