"""Events of the runs that Omnizen does not drive, so that a report can lay them beside one that it does."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from torch import nn

from omnizen.bench.counters import counter
from omnizen.bench.job import Answer, Job
from omnizen.bench.methods import Wrapped
from omnizen.bench.rows import versions
from omnizen.events import EndEvent, EventWriter, NoteEvent, RunEvent, StepEvent, events_path

NOTE = (
    "compute_s was measured once, as the forward and backward of one step without communication and with all "
    "ranks at work; the rest of each step is counted as wire"
)


@dataclass
class Recording:
    """Writes one rank's events; a run of Omnizen's writes its own, and then this writes nothing."""

    writer: EventWriter | None
    answer: Answer
    wrapped: Wrapped
    zero_s: float
    batch: int

    @classmethod
    def start(cls, job: Job, answer: Answer, model: nn.Module, wrapped: Wrapped) -> Recording:
        """Write who runs what."""
        zero_s = time.monotonic()
        if wrapped.run is not None:
            return cls(None, answer, wrapped, zero_s, job.batch)
        writer = EventWriter(events_path(job.run_dir, answer.rank))
        size = sum(p.numel() for p in model.parameters())
        network = answer.network
        writer.write(
            RunEvent(
                run_id=job.run_id,
                rank=answer.rank,
                size=answer.size,
                host=socket.gethostname(),
                device="cpu",
                method=job.method,
                started_unix_s=time.time(),
                network=network.network,
                rate_bytes_per_s=network.rate_bytes_per_s,
                dilation=network.dilation,
                versions=versions(),
                model={"params": size, "name": job.case},
            )
        )
        writer.write(NoteEvent(step=0, text=NOTE))
        return cls(writer, answer, wrapped, zero_s, job.batch)

    def before(self) -> tuple[int, int]:
        """Return the byte counters, to be given to ``step``."""
        return self._bytes() if self.writer else (0, 0)

    def step(self, n: int, start_s: float, step_s: float, loss: float, before: tuple[int, int]) -> None:
        """Write one step."""
        if self.writer is None:
            return
        sent, received = self._bytes()
        compute_s = min(self.answer.compute_s, step_s)
        self.writer.write(
            StepEvent(
                step=n,
                start_s=start_s - self.zero_s,
                step_s=step_s,
                compute_s=compute_s,
                wire_s=step_s - compute_s,
                loss=loss,
                samples=self.batch,
                tx_bytes=sent - before[0],
                rx_bytes=received - before[1],
            )
        )

    def end(self) -> None:
        """Write that the run ended in order."""
        if self.writer is not None:
            steps = len(self.answer.losses)
            self.writer.write(EndEvent(steps=steps, seconds=time.monotonic() - self.zero_s))
            self.writer.close()

    def _bytes(self) -> tuple[int, int]:
        return counter(self.answer.network.shaped, self.wrapped.counted)[0]()
