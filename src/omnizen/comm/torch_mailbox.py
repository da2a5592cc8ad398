"""A mailbox over torch process groups: a group for each pair of ranks, and a thread for each that asks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from omnizen.comm.base import HasStep
from omnizen.comm.letters import seal, unseal
from omnizen.comm.mailbox import Answer, MailboxBase
from omnizen.comm.pair_link import IDLE, Kind, PairLink
from omnizen.comm.wire import Group
from omnizen.errors import NoAnswer
from omnizen.types import Parts

GOODBYE_S = 2.0
"""How long ``close`` waits for the others to hear that this rank is gone."""
_NOTHING = torch.empty(0, dtype=torch.uint8)


class _Asking:
    """Questions to one rank that are not answered yet, in order."""

    def __init__(self, link: PairLink) -> None:
        self.link = link
        self.sending, self.hearing = threading.Lock(), threading.Lock()
        self.rooms: deque[tuple[int, Any, Callable[[timedelta], None]]] = deque()
        self.asked = 0
        self.answers: dict[int, tuple[Kind, Parts]] = {}


class TorchMailbox(MailboxBase):
    """One rank's mailbox over gloo.

    A server thread sits in a receive without a time limit, which only a question, a goodbye or the end of the
    connection ends; a client that waits for an answer gives up after ``timeout_s`` without progress, and that ends
    the connection of the two.

    Args:
        connect: makes the group of this rank and another one; both call it.
    """

    def __init__(
        self,
        rank: int,
        members: list[int],
        name: str,
        timeout_s: float,
        parent: HasStep,
        connect: Callable[[int], Group],
    ) -> None:
        super().__init__(rank, members, name, timeout_s, parent)
        self._limit = timedelta(seconds=timeout_s)
        self._asking: dict[int, _Asking] = {}
        size = len(members)
        for turn in range(size):  # in each turn every rank has one partner or none: nobody waits in a circle
            peer = (turn - rank) % size
            if peer != rank:
                self._asking[peer] = _Asking(PairLink(connect(peer)))
        self._threads: dict[int, threading.Thread] = {}
        self._held: list[Any] = []
        """Messages that nobody waits for; gloo loses those that are dropped before they have left."""

    def serve(self, answer: Answer) -> None:
        """Begin to answer."""
        super().serve(answer)
        for peer in self._asking:
            name = f"mailbox {self.name} rank {self.members[self.rank]} answers {self.members[peer]}"
            thread = threading.Thread(target=self._serve, args=(peer,), name=name, daemon=True)
            self._threads[peer] = thread
            thread.start()

    def _serve(self, peer: int) -> None:
        link = self._asking[peer].link
        try:
            while True:
                kind, letter = link.receive(link.post(Kind.QUESTION), Kind.QUESTION, IDLE, IDLE)
                if kind is Kind.BYE:
                    self._say_bye(link, Kind.QUESTION)  # and end the thread there that answers this rank
                    break
                with self.answering():
                    try:
                        said, found = Kind.ANSWER, seal(self.answered(peer, unseal(letter)))
                    except NoAnswer as error:
                        text = torch.frombuffer(bytearray(str(error).encode()), dtype=torch.uint8)
                        said, found = Kind.NO_ANSWER, seal([text])
                    link.send(Kind.ANSWER, said, found)(IDLE)
        except RuntimeError:
            pass  # the connection of the two broke: all that ends is this thread, and who waits is told below
        self.lose(peer)

    def _send(self, dest: int, parts: Parts) -> Callable[[int | None, float], Parts]:
        asking = self._asking[dest]
        letter = seal(parts)
        with asking.sending, self._naming(dest, self.step, time.monotonic()):
            number, asking.asked = asking.asked, asking.asked + 1
            room = asking.link.post(Kind.ANSWER)
            asking.rooms.append((number, room, asking.link.send(Kind.QUESTION, Kind.QUESTION, letter)))

        def finish(step: int | None, started_s: float) -> Parts:
            with asking.hearing, self._naming(dest, step, started_s):
                while number not in asking.answers:
                    if dest in self._lost:
                        raise self.failure(dest, step, started_s)
                    self._hear(asking)
                kind, found = asking.answers.pop(number)
            if kind is Kind.BYE:
                self.lose(dest)
                raise self.failure(dest, step, started_s)
            if kind is Kind.NO_ANSWER:
                raise NoAnswer(bytes(found[0].tolist()).decode())
            return found

        return finish

    def _hear(self, asking: _Asking) -> None:
        """Wait for the next answer."""
        number, room, sent = asking.rooms.popleft()
        kind, letter = asking.link.receive(room, Kind.ANSWER, self._limit, self._limit)
        if kind is not Kind.BYE:
            sent(self._limit)
        asking.answers[number] = kind, unseal(letter) if len(letter) else []

    @contextlib.contextmanager
    def _naming(self, peer: int, step: int | None, started_s: float) -> Any:
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, NoAnswer) or hasattr(error, "peer"):
                raise
            late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
            self.lose(peer)
            raise self.failure(peer, step, started_s, late=late) from error

    def close(self) -> None:
        """Tell the others that this rank is gone; waits a moment for them to hear it."""
        if not self.stop_answering():
            return
        for peer, asking in self._asking.items():
            if peer not in self._lost:
                self._say_bye(asking.link, Kind.QUESTION)
                self._say_bye(asking.link, Kind.ANSWER)
        self._join(GOODBYE_S)
        for peer, thread in self._threads.items():
            if thread.is_alive():  # that rank does not hear us; a thread must not wait in gloo when Python ends
                self._asking[peer].link.cut()
        self._join(GOODBYE_S)

    def _say_bye(self, link: PairLink, stream: Kind) -> None:
        with contextlib.suppress(RuntimeError):  # it is gone too
            self._held.append(link.send(stream, Kind.BYE, _NOTHING))

    def _join(self, limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        for thread in self._threads.values():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline_s - time.monotonic()))
