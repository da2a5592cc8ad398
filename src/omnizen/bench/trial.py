"""Run one job on all workers and gather what they answered, or the reason why they did not."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from omnizen.bench.errand import who_is_missing
from omnizen.bench.job import Answer, Job, answers
from omnizen.bench.launch import Launch, python
from omnizen.bench.summary import Trial

Follow = Callable[[str, dict[str, Any]], None]
"""Called with the kind and the content of each message of rank 0 (``step``: step, loss, step_s;
``doing``: text)."""

START_S = 120.0
"""Beyond the workers' own limit: to start Python and to end."""
TAIL_LINES = 5


def ignore(kind: str, what: dict[str, Any]) -> None:
    """Follow nothing."""
    del kind, what


def run_trial(job: Job, launch: Launch, follow: Follow = ignore) -> Trial:
    """Run a job; a worker that fails or hangs makes the trial a failed one, never an error."""
    path = job.save()
    tails: defaultdict[int, deque[str]] = defaultdict(lambda: deque(maxlen=TAIL_LINES))
    with (job.out / "output.txt").open("w", encoding="utf-8") as log:

        def on_line(rank: int, line: str) -> None:
            message = parse_message(line)
            if message is not None:
                follow(*message)
            elif not log.closed:
                tails[rank].append(line)
                log.write(f"{rank} | {line}\n")

        codes = launch(python("omnizen.bench.worker", str(path)), on_line, job.limit_s + START_S)
    found = answers(job.out)
    reason = why_failed(codes, found, {rank: list(lines) for rank, lines in tails.items()})
    return Trial(job.method, [] if reason else found, reason)


def parse_message(line: str) -> tuple[str, dict[str, Any]] | None:
    """Read a line that a worker meant for us; None for any other output.

    Example:
        >>> parse_message('@step {"step": 3}')
        ('step', {'step': 3})
    """
    if not line.startswith("@"):
        return None
    kind, _, text = line[1:].partition(" ")
    try:
        what = json.loads(text)
    except json.JSONDecodeError:
        return None
    return (kind, what) if isinstance(what, dict) else None


def why_failed(codes: list[int], found: list[Answer], tails: dict[int, list[str]]) -> str:
    """Return the first cause of a failure in one line; empty when every worker answered well."""
    told = sorted((a for a in found if a.failed), key=lambda a: follows(a.failed))
    if told:
        return f"rank {told[0].rank}: {told[0].failed.splitlines()[0]}"
    said = {rank: [line for line in lines if line.strip()] for rank, lines in tails.items()}
    return who_is_missing(codes, found, {rank: lines[-1] for rank, lines in said.items() if lines})


def follows(reason: str) -> int:
    """Order reasons: own failures first, then running out of time, then having lost a peer to either."""
    if "Connection closed" in reason or "Connection reset" in reason or "lost rank" in reason:
        return 2
    return 1 if "did not finish within" in reason else 0
