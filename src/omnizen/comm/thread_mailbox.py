"""Mailboxes of thread ranks: questions lie in queues, one thread for each pair of ranks answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

from omnizen.comm.base import HasStep
from omnizen.comm.mailbox import MailboxBase
from omnizen.errors import NoAnswer
from omnizen.types import Parts


@dataclass(slots=True)
class _Question:
    parts: Parts
    done: threading.Event = field(default_factory=threading.Event)
    answer: Parts | None = None
    error: NoAnswer | None = None


class Office:
    """The mailboxes of one name.

    Args:
        members: the world rank of each rank.
    """

    def __init__(self, members: list[int]) -> None:
        self.members = members
        self.lock = threading.Lock()
        self.boxes: dict[int, ThreadMailbox] = {}
        self.queues: dict[tuple[int, int], SimpleQueue[_Question | None]] = {}
        self.waiting: list[tuple[int, _Question]] = []
        self.changed = threading.Condition(self.lock)
        self.gone: set[int] = set()

    def join(self, rank: int, box: ThreadMailbox) -> None:
        """Add a rank's mailbox."""
        with self.changed:
            self.boxes[rank] = box
            for lost in self.gone:
                box.lose(lost)
            self.changed.notify_all()

    def post(self, source: int, dest: int, question: _Question) -> None:
        """Leave a question for a rank."""
        with self.lock:
            if dest in self.gone:
                question.done.set()
                return
            self.waiting.append((dest, question))
            queue = self.queues.get((source, dest))
            if queue is None:
                queue = self.queues[source, dest] = SimpleQueue()
                name = f"answers {dest} to {source}"
                threading.Thread(target=self._serve, args=(source, dest, queue), name=name, daemon=True).start()
        queue.put(question)

    def lose(self, rank: int) -> None:
        """Let those who wait for a rank know that it is gone, and end what answered for it or to it."""
        with self.changed:
            self.gone.add(rank)
            boxes, waiting = list(self.boxes.values()), list(self.waiting)
            for pair, queue in self.queues.items():
                if rank in pair:
                    queue.put(None)
            self.changed.notify_all()
        for box in boxes:
            box.lose(rank)
        for dest, question in waiting:
            if dest == rank:
                question.done.set()

    def _serve(self, source: int, dest: int, queue: SimpleQueue[_Question | None]) -> None:
        with self.changed:
            self.changed.wait_for(lambda: dest in self.boxes or dest in self.gone)
            box = self.boxes.get(dest)
        while (question := queue.get()) is not None and box is not None and dest not in self.gone:
            with box.answering():
                try:
                    found = box.answered(source, question.parts)
                    question.answer = [p.detach().to("cpu", copy=True) for p in found]
                except NoAnswer as error:
                    question.error = error
                question.done.set()
            with self.lock:
                self.waiting = [each for each in self.waiting if each[1] is not question]


class ThreadMailbox(MailboxBase):
    """One thread rank's mailbox."""

    def __init__(self, office: Office, rank: int, name: str, timeout_s: float, parent: HasStep) -> None:
        super().__init__(rank, office.members, name, timeout_s, parent)
        self._office = office
        office.join(rank, self)

    def _send(self, dest: int, parts: Parts) -> Callable[[int | None, float], Parts]:
        question = _Question([p.detach().to("cpu", copy=True) for p in parts])
        self._office.post(self.rank, dest, question)

        def finish(step: int | None, started_s: float) -> Parts:
            left_s = self.timeout_s - (time.monotonic() - started_s)
            late = not question.done.wait(max(0.0, left_s))
            if question.error is not None:
                raise question.error
            if question.answer is None:
                self.lose(dest)
                raise self.failure(dest, step, started_s, late=late)
            return question.answer

        return finish

    def close(self) -> None:
        """Tell the others that this rank is gone."""
        if self.stop_answering():
            self._office.lose(self.rank)
