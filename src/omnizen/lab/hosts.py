"""Runs one command per host: their output, their end, and stopping them; the same for every kind of lab."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omnizen.errors import UserError
from omnizen.lab.interrupts import Interrupts, signal_name
from omnizen.lab.output import HostOutput
from omnizen.lab.result import LabResult

OnLine = Callable[[int, str], None]
"""Called with the host's number and one line of its output, without the line's end."""
OnNote = Callable[[str], None]
"""Called when something happens to hosts that people want to know at once: one failed, or is stopped."""
LAUNCH = Path(__file__).with_name("launch.py")
_POLL_S = 0.05
_STAGES = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM))


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: of the whole run, of the others after a failure, between one stopping signal and the next."""

    timeout_s: float
    grace_s: float
    stop_s: float


@dataclass(slots=True)
class _Host:
    number: int
    process: subprocess.Popen[bytes]
    output: HostOutput
    started_s: float
    seconds: float = 0.0

    def send(self, number: int) -> None:
        if self.process.poll() is None:  # not reaped, so its group is still its own
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                return


def silent(host: int, line: str) -> None:
    """Show nothing; the last lines are kept in the result all the same."""
    del host, line


def unnoted(note: str) -> None:
    """Show nothing; the notes are kept in the result all the same."""
    del note


def check_command(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise a ``UserError`` when there is no such program."""
    if not command:
        raise UserError("no command was given; write it after '--', for example: omnizen lab --hosts 2 -- hostname")
    if shutil.which(command[0], path=env.get("PATH")) is None:
        raise UserError(f"command {command[0]!r} was not found (or may not be executed); is it on the PATH?")


class HostRunner:
    """Starts hosts one by one, then follows them all until they have ended. Leave it to stop what still runs."""

    def __init__(self, limits: Limits, interrupts: Interrupts, on_line: OnLine, on_note: OnNote = unnoted) -> None:
        self._limits, self._interrupts = limits, interrupts
        self._on_line, self._on_note = on_line, on_note
        self._hosts: list[_Host] = []
        self._selector = selectors.DefaultSelector()
        self._notes: list[str] = []
        self._first_failure: int | None = None
        self._timed_out = False
        self._stage, self._next_stage_s, self._heard = -1, 0.0, 0
        self._failed_s: float | None = None

    def __enter__(self) -> HostRunner:
        return self

    def __exit__(self, *unused: object) -> None:
        for host in self._hosts:
            host.send(signal.SIGKILL)
        for host in self._hosts:
            host.process.wait(timeout=10.0)
            assert host.process.stdout is not None
            host.process.stdout.close()
        self._selector.close()

    def start(self, command: Sequence[str], env: Mapping[str, str], procs: Path | None = None) -> None:
        """Start the next host's command, in the control group whose list of processes is ``procs``."""
        number = len(self._hosts)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid()), str(procs or "-"), *command],
            env={"PYTHONUNBUFFERED": "1", **env},  # a pipe would hold lines back
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C reaches the lab alone, which passes it on
            bufsize=0,
        )
        assert process.stdout is not None
        output = HostOutput(process.stdout.fileno(), lambda line: self._on_line(number, line))
        host = _Host(number, process, output, time.monotonic())
        self._hosts.append(host)
        self._selector.register(output.pipe, selectors.EVENT_READ, host)

    def follow(self) -> LabResult:
        """Show output and wait until every host has ended, or was stopped for a reason.

        The result has no bytes; whoever knows the network adds them.
        """
        began_s = self._hosts[0].started_s
        running = list(self._hosts)
        while running:
            for key, _ in self._selector.select(_POLL_S):
                if not key.data.output.read():
                    self._selector.unregister(key.fd)
            now_s = time.monotonic()
            for host in [h for h in running if h.process.poll() is not None]:
                running.remove(host)
                host.seconds = now_s - host.started_s
                self._ended(host, now_s)
            if running:
                self._stop_if_due(now_s, now_s - began_s, running)
        for host in self._hosts:
            host.output.finish()
        return LabResult(
            returncodes=tuple(h.process.returncode for h in self._hosts),
            host_seconds=tuple(h.seconds for h in self._hosts),
            seconds=max(h.started_s + h.seconds for h in self._hosts) - began_s,
            tails=tuple(tuple(h.output.tail) for h in self._hosts),
            notes=tuple(self._notes),
            first_failure=self._first_failure,
            timed_out=self._timed_out,
            interrupted=self._interrupts.first,
        )

    def _ended(self, host: _Host, now_s: float) -> None:
        code = host.process.returncode
        if code and self._failed_s is None and self._stage < 0:
            self._failed_s, self._first_failure = now_s, host.number
            how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
            self._note(f"host {host.number} {how} after {host.seconds:.1f} s")

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._on_note(text)

    def _stop_if_due(self, now_s: float, elapsed_s: float, running: list[_Host]) -> None:
        """Begin to stop the hosts when there is a reason, or go on to the next signal."""
        if self._stage < 0:
            which = ", ".join(str(h.number) for h in running)
            if self._interrupts.first is not None:
                gently = self._interrupts.first == signal.SIGINT
                name = signal_name(self._interrupts.first)
                reason = f"{name} came and was passed on to the hosts still running ({which})"
                self._signal(0 if gently else 1, reason, now_s, running)
            elif elapsed_s > self._limits.timeout_s:
                self._timed_out = True
                reason = f"the time limit of {self._limits.timeout_s:g} s stopped the hosts still running ({which})"
                self._signal(1, reason, now_s, running)
            elif self._failed_s is not None and now_s - self._failed_s > self._limits.grace_s:
                reason = (
                    f"hosts still running ({which}) were stopped {self._limits.grace_s:g} s "
                    f"after host {self._first_failure} had failed"
                )
                self._signal(1, reason, now_s, running)
        elif self._stage < 2 and (now_s > self._next_stage_s or self._interrupts.count > self._heard):
            stage = self._stage + 1
            which = ", ".join(str(h.number) for h in running)
            self._signal(
                stage, f"{_STAGES[stage].name} was sent to those that did not end ({which})", now_s, running
            )

    def _signal(self, stage: int, note: str, now_s: float, running: list[_Host]) -> None:
        self._stage, self._next_stage_s = stage, now_s + self._limits.stop_s
        self._heard = self._interrupts.count
        self._note(note)
        for host in running:
            host.send(_STAGES[stage])
