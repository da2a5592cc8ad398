"""Chrome trace of all ranks, for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omnizen.measure.files import write_whole
from omnizen.report.load import RunData


def trace_events(run: RunData) -> list[dict[str, Any]]:
    """Return the trace events of a run: process = rank, thread = thread, microseconds since the first rank's start.

    Ranks are aligned by the clock times at which they started, so hosts whose clocks differ are shifted by it.

    Reference: Trace Event Format, "complete" (X) and "metadata" (M) events.
    """
    began = min(log.run.started_unix_s for log in run.ranks.values())
    out: list[dict[str, Any]] = []
    for rank, log in sorted(run.ranks.items()):
        shift_s = log.run.started_unix_s - began
        if log.spans:
            out.append(_name("process_name", rank, 0, f"rank {rank} ({log.run.host}, {log.run.device})"))
            out.append(
                {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
            )
        threads: dict[str, int] = {}
        for span in log.spans:
            if span.thread not in threads:
                threads[span.thread] = len(threads) + 1
                out.append(_name("thread_name", rank, threads[span.thread], span.thread))
            out.append(
                {
                    "ph": "X",
                    "pid": rank,
                    "tid": threads[span.thread],
                    "cat": span.category,
                    "name": f"{span.category} {span.name}".strip(),
                    "ts": round((shift_s + span.start_s) * 1e6, 3),
                    "dur": round(span.duration_s * 1e6, 3),
                    "args": {"step": span.step},
                }
            )
    return out


def write_trace(run: RunData, path: str | Path | None = None) -> Path | None:
    """Write ``trace.json`` (by default in the run directory); None where no span was recorded.

    Args:
        run: as ``load_run`` returns it.
        path: another place for the file.
    """
    events = trace_events(run)
    if not events:
        return None
    target = Path(path) if path is not None else run.path / "trace.json"
    return write_whole(target, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")))


def _name(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": {"name": name}}
