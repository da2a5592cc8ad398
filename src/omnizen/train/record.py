"""What a step took: written as events while the run goes."""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from omnizen import spans
from omnizen._version import __version__
from omnizen.comm.meter import Metered, MeterReading
from omnizen.errors import NotWrittenWarning, UserError
from omnizen.events import (
    BalanceEvent,
    EndEvent,
    Event,
    EventWriter,
    NoteEvent,
    PlanEvent,
    RunEvent,
    SpanEvent,
    StepEvent,
    events_path,
)
from omnizen.measure.tomlfile import TomlFile
from omnizen.protocols import Comm
from omnizen.spans import CATEGORIES, Category, Recorder, Span
from omnizen.train.scalars import ScalarWriter
from omnizen.train.sync import END_OF_BACKWARD, Round

BUSIEST_FIRST: tuple[Category, ...] = ("wire", "decode", "encode", "select", "wait", "compute")
"""Where spans of several threads overlap, the time counts once, for the first of these."""
TRACED_STEPS = 20
"""Steps under the plan whose spans are kept for the trace."""


def exposed(found: list[Span], begin_s: float, end_s: float, own_thread: str) -> dict[str, float]:
    """Return seconds by category that communication took between two times, while the user's thread waited.

    Args:
        own_thread: the user's; its span over the whole wait does not count, what it did itself inside does.
    """
    totals = dict.fromkeys(CATEGORIES, 0.0)
    changes = []
    for span in found:
        begin, end = max(begin_s, span.start_s), min(end_s, span.start_s + span.duration_s)
        if end > begin and (span.thread, span.name) != (own_thread, END_OF_BACKWARD):
            changes += [(begin, 1, span.category), (end, -1, span.category)]
    active = dict.fromkeys(CATEGORIES, 0)
    last_s = begin_s
    for at_s, change, category in sorted(changes):
        now = next((c for c in BUSIEST_FIRST if active[c]), None)
        if now is not None:
            totals[now] += at_s - last_s
        active[category] += change
        last_s = at_s
    return {f"{category}_s": seconds for category, seconds in totals.items()}


class StepRecord:
    """Turns rounds and optimizer steps into events; a step's event is written when the next one begins.

    ``compute_s`` runs from the end of the step before to the end of the last backward, without the time that the
    user's thread waited for others: it is the rank's own work, so the slow rank shows.
    """

    def __init__(self, run_dir: Path, comm: Comm, lab: dict[str, Any], thread: str) -> None:
        self._writer = EventWriter(events_path(run_dir, comm.rank))
        self._scalars = ScalarWriter(run_dir / "tb") if comm.rank == 0 else None
        self._lost = False
        self._comm, self._lab, self._thread = comm, lab, thread
        self._zero_s = self._began_s = time.monotonic()
        self._recorder = Recorder()
        self._before = spans.listen(self._recorder)
        self._pending: StepEvent | None = None
        self._logged: dict[str, float] = {}
        self._rounds: list[Round] = []
        self._waits: list[tuple[float, float]] = []
        self._samples, self._traced, self._steps = 0, -1, 0
        self._meter = MeterReading()

    def begin(self, run_id: str, model: torch.nn.Module, device: torch.device, method: str) -> None:
        """Write who runs what, and begin the first step."""
        params = sum(p.numel() for p in model.parameters())
        self._write(
            RunEvent(
                run_id=run_id,
                rank=self._comm.rank,
                size=self._comm.size,
                host=socket.gethostname(),
                device=str(device),
                method=method,
                started_unix_s=time.time() - (time.monotonic() - self._zero_s),
                network=self._lab.get("network", "as is"),
                rate_bytes_per_s=self._lab.get("rate_bytes_per_s"),
                dilation=self._lab.get("dilation", 1.0),
                versions={"omnizen": __version__, "torch": torch.__version__},
                model={"params": params, "name": type(model).__name__},
            )
        )
        self._began_s = time.monotonic()
        self._meter = read_meter(self._comm)

    def round(self, done: Round) -> None:
        """Note one synchronised backward."""
        self._flush()
        self._rounds.append(done)

    def waited(self, begin_s: float, end_s: float) -> None:
        """Note that the user's thread waited for others outside of backward."""
        self._waits.append((begin_s, end_s))

    def samples(self, count: int) -> None:
        """Note samples handed to the user."""
        self._samples += count

    def log(self, values: Mapping[str, float]) -> None:
        """Note numbers: of the step just ended if it lacks them and no backward came since, else the next one."""
        if not self._rounds and self._pending is not None and not values.keys() & _named(self._pending).keys():
            named = {**_named(self._pending), **values}
            self._pending = replace(self._pending, loss=named.pop("loss", None), logged=named)
        else:
            self._logged.update(values)

    def step(self, number: int) -> None:
        """Note the end of an optimizer step."""
        self._flush()
        now_s = time.monotonic()
        found = self._recorder.drain()
        waited = sorted([*self._waits, *((r.backward_ended_s, r.ended_s) for r in self._rounds)])
        parts = dict.fromkeys((f"{c}_s" for c in CATEGORIES), 0.0)
        for begin_s, end_s in waited:
            for key, seconds in exposed(found, begin_s, end_s, self._thread).items():
                parts[key] += seconds
        last_s = self._rounds[-1].backward_ended_s if self._rounds else now_s
        before = sum(end - begin for begin, end in waited if end <= last_s)
        parts["compute_s"] = last_s - self._began_s - before
        meter = read_meter(self._comm)
        moved, self._meter = meter - self._meter, meter
        self._pending = StepEvent(
            step=number,
            start_s=self._began_s - self._zero_s,
            step_s=now_s - self._began_s,
            loss=self._logged.pop("loss", None),
            logged=self._logged,
            samples=self._samples,
            tx_bytes=round(moved.tx_bytes),
            rx_bytes=round(moved.rx_bytes),
            rx_bytes_by_peer={peer: round(count) for peer, count in moved.rx_bytes_by_peer().items()},
            **parts,
        )
        if 0 <= self._traced < TRACED_STEPS:
            for span in found:
                self._write(
                    SpanEvent(
                        step=number,
                        category=span.category,
                        name=span.name,
                        start_s=span.start_s - self._zero_s,
                        duration_s=span.duration_s,
                        thread=span.thread,
                    )
                )
            self._traced += 1
        self._began_s, self._steps = now_s, number + 1
        self._rounds, self._waits, self._logged, self._samples = [], [], {}, 0

    def keep(self, files: Mapping[str, TomlFile | None]) -> None:
        """Write files beside the events, those that there are."""
        for name, file in files.items():
            if file is not None:
                with self.unless_full():
                    file.save(self._writer.path.parent / name)

    def trace(self) -> None:
        """Keep the spans of the next steps."""
        self._traced = 0

    def plan(self, step: int, path: str) -> None:
        """Note that a plan is in force."""
        self._write(PlanEvent(step=step, path=path))

    def balance(self, step: int, sizes: tuple[int, ...], own_s: tuple[float, ...]) -> None:
        """Note new batch sizes, and each rank's own seconds of a step that led to them."""
        self._write(BalanceEvent(step=step, sizes=list(sizes), own_s=list(own_s)))

    def note(self, step: int, text: str) -> None:
        """Write a sentence."""
        self._write(NoteEvent(step=step, text=text))

    def close(self) -> None:
        """Write the end."""
        self._flush()
        self._write(EndEvent(steps=self._steps, seconds=time.monotonic() - self._zero_s))
        self._writer.close()
        if self._scalars is not None:
            with self.unless_full():
                self._scalars.close()
        spans.listen(self._before)

    def _flush(self) -> None:
        if self._pending is not None:
            self._write(self._pending)
            if self._scalars is not None and not self._lost:
                with self.unless_full():
                    self._scalars.observe(self._pending)
            self._pending = None

    def _write(self, event: Event) -> None:
        if not self._lost:
            with self.unless_full():
                self._writer.write(event)

    @contextmanager
    def unless_full(self) -> Iterator[None]:
        """Warn once where the disk is full or gone: hours of training are worth more than their record."""
        try:
            yield
        except (OSError, UserError) as error:
            if not self._lost:
                reason = (isinstance(error, OSError) and error.strerror) or error
                text = (
                    f"{self._writer.path.parent} cannot be written to ({reason}): training goes on, "
                    f"and what this rank writes down ends at step {self._steps}"
                )
                warnings.warn(text, NotWrittenWarning, stacklevel=2)
            self._lost = True


def _named(step: StepEvent) -> dict[str, float]:
    return {**step.logged} if step.loss is None else {"loss": step.loss, **step.logged}


def read_meter(comm: Comm) -> MeterReading:
    """Return what a metered comm has sent and received so far; zeros where nobody counts (tests, one rank)."""
    return comm.reading() if isinstance(comm, Metered) else MeterReading()
