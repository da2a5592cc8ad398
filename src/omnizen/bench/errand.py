"""One job for all workers of a benchmark: each does it, and leaves its answer or why there is none."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from omnizen.bench.launch import Launch, python
from omnizen.bench.watch import watch
from omnizen.errors import OmnizenError


class Errand(BaseModel):
    """What all workers are told.

    Args:
        limit_s: a worker that takes longer ends with an answer that says so.
        out: folder for the answers; whoever sends the job makes one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit_s: float
    out: Path = Path()


class WorkerAnswer(BaseModel):
    """What one worker has to say.

    Args:
        failed: why there is nothing else; empty when all went well.
    """

    model_config = ConfigDict(extra="forbid")

    rank: int
    failed: str = ""

    def save(self, folder: Path) -> None:
        """Write the answer; readers never see half of it."""
        path = folder / f"rank{self.rank}.json"
        part = path.with_suffix(".part")
        part.write_text(self.model_dump_json(), encoding="utf-8")
        part.replace(path)


Job = TypeVar("Job", bound=Errand)
Answered = TypeVar("Answered", bound=WorkerAnswer)


def do_errand(job: Job, answer: Answered, work: Callable[[Job, Answered], None]) -> int:
    """Work, in a worker, and leave the answer in the job's folder; returns the exit status."""
    watch(job.limit_s, lambda reason: answer.model_copy(update={"failed": reason}).save(job.out))
    try:
        work(job, answer)
    except Exception as error:  # whatever goes wrong is the answer
        answer.failed = str(error) if isinstance(error, OmnizenError) else f"{type(error).__name__}: {error}"
        traceback.print_exc()
    answer.save(job.out)
    return 1 if answer.failed else 0


def send(
    job: Job,
    module: str,
    answers: type[Answered],
    start: Launch,
    *,
    start_s: float = 60.0,
    on_line: Callable[[str], None] = lambda _: None,
) -> tuple[list[Answered], str]:
    """Have all workers do a job; returns their answers by rank, and what is wrong with them or an empty text.

    Args:
        module: what the workers run, with the job's file as its argument.
        start_s: time beyond the job's limit, to start and to end.
        on_line: told each line that the first worker prints.
    """
    last: dict[int, str] = {}

    def line(rank: int, text: str) -> None:
        last[rank] = text
        if rank == 0:
            on_line(text)

    with tempfile.TemporaryDirectory(prefix="omnizen-bench-") as folder:
        out = Path(folder)
        path = out / "job.json"
        path.write_text(job.model_copy(update={"out": out}).model_dump_json(), encoding="utf-8")
        codes = start(python(module, str(path)), line, job.limit_s + start_s)
        found = [answers.model_validate_json(p.read_text(encoding="utf-8")) for p in out.glob("rank*.json")]
    found.sort(key=lambda answer: answer.rank)
    return found, what_is_wrong(codes, found, last)


def what_is_wrong(codes: Sequence[int], found: Sequence[WorkerAnswer], last: dict[int, str]) -> str:
    """Name the first worker that failed or did not answer; empty when all did.

    Args:
        codes: exit status of each worker.
        last: the last line of each worker that printed any.
    """
    bad = next((a for a in found if a.failed), None)
    if bad is not None:
        return f"rank {bad.rank}: {bad.failed}"
    return who_is_missing(codes, found, last)


def who_is_missing(codes: Sequence[int], found: Sequence[WorkerAnswer], last: Mapping[int, str]) -> str:
    """Name the first worker that did not answer, and its last words; empty when all did.

    Args:
        codes: exit status of each worker.
        last: the last line of each worker that printed any.
    """
    missing = next((r for r in range(len(codes)) if r not in {a.rank for a in found}), None)
    if missing is None:
        return ""
    return (
        f"rank {missing} ended with status {codes[missing]} and no answer: {last.get(missing, 'no output').strip()}"
    )
