"""Decisions of a search, said in words and written as events."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from omnizen._version import __version__
from omnizen.events import EndEvent, EventWriter, PlanEvent, RunEvent, SearchEvent, events_path
from omnizen.measure.around import lab_facts
from omnizen.measure.texts import gather_texts
from omnizen.plan.tuner import Tuner
from omnizen.train.run import Run
from omnizen.train.tuning.pricing import Ledger

MOST_POINTS = 60
"""Losses of a probe that an event holds."""


class Diary:
    """Writes each decision once; a call that goes on with a search writes what was decided before it again.

    Args:
        say: told each new decision.
    """

    def __init__(
        self, folder: Path, run: Run, name: str, model: torch.nn.Module, say: Callable[[str], None]
    ) -> None:
        self._say, self._rank = say, run.rank
        self._writer = EventWriter(events_path(folder, run.rank))
        self._zero_s = time.monotonic()
        self._notes = self._prices = self._trials = 0
        lab = lab_facts()
        self._writer.write(
            RunEvent(
                run_id=gather_texts(run.control, f"{time.time_ns():x}")[0],
                rank=run.rank,
                size=run.size,
                host=socket.gethostname(),
                device=str(run.device),
                method="tune",
                started_unix_s=time.time(),
                network=lab.get("network", "as is"),
                rate_bytes_per_s=lab.get("rate_bytes_per_s"),
                dilation=lab.get("dilation", 1.0),
                versions={"omnizen": __version__, "torch": str(torch.__version__)},
                model={"params": sum(p.numel() for p in model.parameters()), "name": name},
            )
        )

    def tell(self, tuner: Tuner) -> None:
        """Tell what is new of a tuner."""
        for note in tuner.notes[self._notes :]:
            loss: float | None = None
            losses: Sequence[float] = ()
            if note.kind in ("probed", "rejected") and note.phase != "training":
                trial = tuner.trials[self._trials]
                self._trials += 1
                loss, losses = trial.score, trial.result.losses
            self._tell(note.phase, note.kind, note.text, loss, losses)
        self._notes = len(tuner.notes)

    def tell_prices(self, ledger: Ledger) -> None:
        """Tell what is new of prices."""
        for kind, text, loss, losses in ledger.notes[self._prices :]:
            self._tell("prices", kind, text, loss, losses)
        self._prices = len(ledger.notes)

    def planned(self) -> None:
        """Note that there is a plan."""
        if self._rank == 0:
            self._writer.write(PlanEvent(step=0, path="plan.toml"))

    def _tell(self, phase: str, kind: str, text: str, loss: float | None, losses: Sequence[float]) -> None:
        self._say(f"{phase}: {kind} {text}")
        if self._rank != 0:
            return
        finite = [value for value in losses if math.isfinite(value)]
        every = max(1, -(-len(finite) // MOST_POINTS))
        self._writer.write(
            SearchEvent(
                start_s=time.monotonic() - self._zero_s,
                phase=phase,
                decision=kind,
                text=text,
                loss=loss if loss is not None and math.isfinite(loss) else None,
                losses=finite[::every],
            )
        )

    def __enter__(self) -> Diary:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._writer.write(EndEvent(steps=0, seconds=time.monotonic() - self._zero_s))
        self._writer.close()
