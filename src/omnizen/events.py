"""What a run writes down while it goes: one JSON object a line, one file per rank."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
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
    ``wait_s`` is time spent waiting for a peer, ``wire_s`` time in which bytes moved and nothing else was done.
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
class NoteEvent:
    """Something a reader of the run should know, in words."""

    event: ClassVar[str] = "note"
    step: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvent:
    """The run ended in order; a file without it was cut short."""

    event: ClassVar[str] = "end"
    steps: int
    seconds: float


Event = RunEvent | StepEvent | SpanEvent | PlanEvent | NoteEvent | EndEvent
EVENTS: dict[str, type[Event]] = {
    kind.event: kind for kind in (RunEvent, StepEvent, SpanEvent, PlanEvent, NoteEvent, EndEvent)
}


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
        line = json.dumps(as_dict(event), separators=(",", ":")) + "\n"
        with self._lock:
            self._file.write(line.encode())

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
        except ValueError as error:
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
        ValueError: not an object, of no known kind, without a needed key, or with a value of another type.
    """
    if not isinstance(raw, Mapping):
        raise ValueError(f"expected an object, got {type(raw).__name__}")
    kind = EVENTS.get(str(raw.get("event")))
    if kind is None:
        raise ValueError(f"unknown event: {nearest(raw.get('event'), EVENTS)}")
    known = {f.name for f in fields(kind)}
    values = {key: value for key, value in raw.items() if key in known}
    missing = [f.name for f in fields(kind) if f.name not in values and _needed(f)]
    if missing:
        raise ValueError(f"the {kind.event} event lacks {', '.join(missing)}")
    for f in fields(kind):
        if f.name in values and not isinstance(values[f.name], _fits(str(f.type))):
            raise ValueError(f"{f.name} of the {kind.event} event is {values[f.name]!r}, not {f.type}")
    if "rx_bytes_by_peer" in values:
        values["rx_bytes_by_peer"] = {int(peer): count for peer, count in values["rx_bytes_by_peer"].items()}
    return kind(**values)


def _needed(f: Any) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


def _fits(annotation: str) -> tuple[type, ...]:
    """Return the classes that a value of the annotated field may have in JSON."""
    if annotation.startswith("dict"):
        return (dict,)
    number = (int, float, type(None)) if annotation.endswith("| None") else (int, float)
    return number if annotation.startswith(("int", "float")) else (str,)


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
