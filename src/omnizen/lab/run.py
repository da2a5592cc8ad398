"""A lab: hosts in network namespaces with shaped links and limited processors, for as long as it is open."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from omnizen.errors import UserError
from omnizen.lab.config import LabConfig, num_cores
from omnizen.lab.environment import Surroundings
from omnizen.lab.hosts import HostRunner, Limits, OnLine, OnNote, check_command, silent, unnoted
from omnizen.lab.interrupts import Interrupts
from omnizen.lab.namespaces import require
from omnizen.lab.network import Counted, Network
from omnizen.lab.quota import Quotas
from omnizen.lab.rates import Link
from omnizen.lab.result import LabResult
from omnizen.lab.state import RUN_DIR, LabFile

NETWORK = "namespaces, shaped links"
MASTER_PORT = 29500
"""Free in every namespace, as nothing else runs there."""


class Lab:
    """Hosts that are there from entering to leaving; whatever happens, leaving removes them.

    Raises:
        UserError: this machine cannot have a lab; the message says what is missing.

    Example:
        >>> with Lab(LabConfig(hosts=2, rate="10mbit")) as lab:  # doctest: +SKIP
        ...     lab.run(["hostname", "-I"], on_line=print)
    """

    def __init__(self, config: LabConfig, *, run_dir: Path = RUN_DIR) -> None:
        self.config, self._run_dir = config, run_dir
        self.cores = num_cores()
        self.factor = config.factor(self.cores)
        self._links = list(config.shaped(self.cores))
        self._shares = config.shares(self.cores)
        self.interrupts = Interrupts()
        self._file: LabFile | None = None
        self._quotas: Quotas | None = None

    def __enter__(self) -> Lab:
        require()
        self.interrupts.__enter__()
        try:
            with self.interrupts.held():
                self._file = LabFile.create(self._run_dir)
                self.network = Network(self._file.name, self.config.hosts)
                self.network.build(self._links)
                if self._shares:
                    self._quotas = Quotas.here(self._file.name)
                    self._quotas.make(self._shares)
            self.interrupts.pass_on()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> int:
        """Remove everything; return how many processes had to be killed. Calling it twice is harmless."""
        file, self._file = self._file, None
        try:
            with self.interrupts.held():
                return file.remove() if file else 0
        finally:
            self.interrupts.__exit__(None, None, None)

    def set_rate(self, host: int, rate: str, down: str | None = None) -> None:
        """Change a host's link while commands run; the rates are before dilation, one rate means both ways."""
        if not 0 <= host < self.config.hosts:
            raise UserError(f"there is no host {host}; they are 0 to {self.config.hosts - 1}")
        self._links[host] = Link.of(rate, down).slowed(self.factor)
        self.network.shape(host, self._links[host])

    def stop(self) -> None:
        """Stop the running command as a Ctrl-C would; may be called from any thread."""
        self.interrupts.note(signal.SIGINT)

    def counted(self) -> list[Counted]:
        """Return each host's bytes so far."""
        return self.network.counted()

    def env(self, host: int) -> dict[str, str]:
        """Return what the lab sets in the environment of a host's command."""
        around = Surroundings(
            hosts=self.config.hosts,
            address=self.network.address(0),
            port=MASTER_PORT,
            interface="eth0",
            dilation=self.factor,
            network=NETWORK,
        )
        return around.env(host, self._links[host], self._shares[host] if self._shares else None)

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        on_line: OnLine = silent,
        on_note: OnNote = unnoted,
    ) -> LabResult:
        """Run the command once on each host and return when all have ended.

        Args:
            command: program and arguments.
            env: set beside this process's environment and what torchrun would set.
            on_line: called with (host, line) for each line of output.
            on_note: called with a sentence when a host fails or hosts are stopped; the result has them too.
        """
        base = {**os.environ, **(env or {})}
        check_command(command, base)
        self.interrupts.pass_on()
        before = self.counted()
        limits = Limits(self.config.timeout_s, self.config.grace_s, self.config.stop_s)
        ip = shutil.which("ip") or "ip"
        with self.interrupts.held(), HostRunner(limits, self.interrupts, on_line, on_note) as runner:
            for host in range(self.config.hosts):
                inside = [ip, "netns", "exec", self.network.namespace(host)]
                procs = self._quotas.procs(host) if self._quotas else None
                runner.start([*inside, *command], {**base, **self.env(host)}, procs)
            result = runner.follow()
        after = self.counted()
        return replace(
            result,
            tx_bytes=_gained(before, after, "tx_bytes"),
            rx_bytes=_gained(before, after, "rx_bytes"),
            tx_packets=_gained(before, after, "tx_packets"),
            rx_packets=_gained(before, after, "rx_packets"),
            factor=self.factor,
            network=NETWORK,
        )


def _gained(before: list[Counted], after: list[Counted], what: str) -> tuple[int, ...]:
    return tuple(getattr(b, what) - getattr(a, what) for a, b in zip(before, after, strict=True))


def run_lab(
    config: LabConfig, command: Sequence[str], *, env: Mapping[str, str] | None = None, on_line: OnLine = silent
) -> LabResult:
    """Build a lab, run the command once on each of its hosts, remove the lab, return what came of it.

    A Ctrl-C is passed on to the hosts and raised again here as ``KeyboardInterrupt`` after the cleaning. Several
    labs may run at the same time, each in a thread or process of its own.

    Raises:
        UserError: this machine cannot have a lab, or there is no such command.

    Example:
        >>> run_lab(LabConfig(hosts=2, rate="10mbit"), ["true"]).returncodes  # doctest: +SKIP
        (0, 0)
    """
    check_command(command, {**os.environ, **(env or {})})
    with Lab(config) as lab:
        result = lab.run(command, env=env, on_line=on_line)
    lab.interrupts.pass_on()
    return result
