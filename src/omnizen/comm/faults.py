"""Scripted faults: what goes wrong, at which rank and step; with counts, so that a test proves it happened."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omnizen.comm.mail_wrapper import MailWrapper
from omnizen.comm.wrapper import Call, Wrapper
from omnizen.errors import OmnizenError, UserError
from omnizen.protocols import Comm, Mailbox, Pending
from omnizen.types import Parts


class Dropped(OmnizenError, RuntimeError):
    """Raised in a rank that a script drops; whoever hosts the rank ends it."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The rank ends at a call in the step, its first unless another one is named (from 0)."""

    rank: int
    step: int
    call: int = 0


@dataclass(frozen=True, slots=True)
class Delay:
    """The rank is late by so many seconds at its first call in the step (of its own clock if simulated)."""

    rank: int
    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Slow:
    """From the step on, a simulated link takes ``factor`` times as long."""

    source: int
    dest: int
    factor: float
    step: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """The rank's first question in the step is asked twice, and the second answer counts."""

    rank: int
    step: int


Fault = Drop | Delay | Slow | Repeat


class Faults:
    """A script of faults that all ranks of a test share.

    Example:
        >>> from omnizen.comm.threads import run_ranks
        >>> faults = Faults(Drop(rank=1, step=2))
        >>> def body(comm):
        ...     for comm.step in range(5):
        ...         comm.barrier()
        >>> try: run_ranks(3, body, wrap=lambda comm: Faulty(comm, faults))
        ... except Dropped as error: print(error, faults.count(Drop(1, 2)))
        rank 1 was dropped at step 2 by the script 1
    """

    def __init__(self, *script: Fault) -> None:
        self.script = script
        self._lock = threading.Lock()
        self._happened: Counter[Fault] = Counter()
        self._calls: Counter[tuple[int, int | None]] = Counter()

    def count(self, fault: Fault) -> int:
        """Return how often a fault of the script has happened."""
        if fault not in self.script:
            raise UserError(f"{fault} is not in the script: {list(self.script)}")
        return self._happened[fault]

    def take(self, rank: int, step: int | None, *, asking: bool = False) -> list[Fault]:
        """Return the faults that are due at a rank's call, each once, and count them.

        Args:
            asking: whether the call is a question; only those can be repeated.
        """
        due = []
        with self._lock:
            call = self._calls[rank, step]
            self._calls[rank, step] += 1
            for fault in self.script:
                at = fault.source if isinstance(fault, Slow) else fault.rank
                early = isinstance(fault, Drop) and call < fault.call
                early |= isinstance(fault, Repeat) and not asking
                if (at, fault.step) == (rank, step) and not early and not self._happened[fault]:
                    self._happened[fault] += 1
                    due.append(fault)
        return due


class Faulty(Wrapper):
    """A comm that follows a script of faults; the script counts ranks as the outermost comm does.

    Args:
        inner: the comm that carries the calls.
        faults: the script, shared by all ranks.
    """

    def __init__(self, inner: Comm, faults: Faults, *, world_rank: int | None = None) -> None:
        super().__init__(inner)
        self.faults = faults
        self.world_rank = inner.rank if world_rank is None else world_rank

    def around(self, call: Call) -> Pending[Any]:
        """Let what is due happen, then make the call."""
        for fault in self.faults.take(self.world_rank, self.step):
            self.happen(fault)
        return call.start()

    def rewrap(self, inner: Comm, ranks: Sequence[int]) -> Faulty:
        """Let a sub-group follow the same script."""
        del ranks
        return Faulty(inner, self.faults, world_rank=self.world_rank)

    def rewrap_mailbox(self, inner: Mailbox) -> Mailbox:
        """Let questions follow the same script."""
        return FaultyMailbox(inner, self)

    def happen(self, fault: Fault) -> None:
        """Do what a fault says, but for what only questions can do."""
        simulated = hasattr(self.inner, "compute")
        if isinstance(fault, Drop):
            raise Dropped(f"rank {fault.rank} was dropped at step {fault.step} by the script")
        if isinstance(fault, Delay):
            (self.inner.compute if simulated else time.sleep)(fault.seconds)  # type: ignore[attr-defined]
        elif isinstance(fault, Slow) and simulated:
            self.inner.slow(fault.source, fault.dest, fault.factor)  # type: ignore[attr-defined]
        else:
            raise UserError(f"{fault} needs simulated links; this comm is a {type(self.inner).__name__}")


class FaultyMailbox(MailWrapper):
    """A mailbox that follows the script of its comm; the comm's step counts."""

    def __init__(self, inner: Mailbox, comm: Faulty) -> None:
        super().__init__(inner)
        self._comm = comm

    def asking(self, dest: int, parts: Parts) -> Pending[Parts]:
        """Let what is due happen, then ask."""
        comm = self._comm
        for fault in comm.faults.take(comm.world_rank, self.step, asking=True):
            if isinstance(fault, Repeat):
                self.inner.ask(dest, parts).wait()
            else:
                comm.happen(fault)
        return self.inner.ask(dest, parts)
