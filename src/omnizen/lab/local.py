"""The same command once per host over loopback, for machines where no namespaces can be had.

Nothing shapes the links here: the comm layer reads the rate from the environment and paces itself, so the times
are those of a model of a link, not of a link.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from omnizen.errors import UserError
from omnizen.lab.config import LabConfig, num_cores
from omnizen.lab.environment import Surroundings
from omnizen.lab.hosts import HostRunner, Limits, OnLine, check_command, silent
from omnizen.lab.interrupts import Interrupts
from omnizen.lab.namespaces import kill_all
from omnizen.lab.result import LabResult

NETWORK = "loopback, paced in software"
MARK = "OMNIZEN_LAB_ID"


def free_port() -> int:
    """Return a TCP port of the loopback address that nothing uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def marked_pids(mark: str) -> list[int]:
    """Return the processes whose environment carries a lab's mark (none where there is no ``/proc``)."""
    wanted, pids = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").iterdir() if sys.platform == "linux" else ():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:  # it has ended, or is another user's
                continue
            if wanted in environ.split(b"\0"):
                pids.append(int(entry.name))
    return pids


def run_local(
    hosts: int,
    command: Sequence[str],
    rate: str | None = "100mbit",
    *,
    dilation: float | Literal["auto"] = 1.0,
    timeout_s: float = 3600.0,
    grace_s: float = 30.0,
    env: Mapping[str, str] | None = None,
    on_line: OnLine = silent,
) -> LabResult:
    """Run the command once per host over loopback; like ``run_lab``, without root and without shaped links.

    The result has no bytes, as all hosts share one interface. A Ctrl-C is passed on to the hosts and raised
    again here after the cleaning.

    Args:
        hosts: how many.
        command: program and arguments.
        rate: what the comm layer is told to pace itself to, before dilation; None for loopback as it is.
        dilation: factor by which that rate is divided; ``"auto"`` is the oversubscription of the cores.
        timeout_s: after this the hosts are stopped.
        grace_s: how long the others may go on after a host has failed.
        env: set beside this process's environment and what torchrun would set.
        on_line: called with (host, line) for each line of output.

    Raises:
        UserError: there is no such command, or a setting is out of range.

    Example:
        >>> run_local(2, ["true"]).returncodes
        (0, 0)
    """
    if os.name != "posix":
        raise UserError(f"hosts over loopback need Linux or macOS, and this is {sys.platform}")
    config = LabConfig(hosts=hosts, rate=rate or "1gbit", dilation=dilation, timeout_s=timeout_s, grace_s=grace_s)
    base, mark, cores = {**os.environ, **(env or {})}, secrets.token_hex(8), num_cores()
    check_command(command, base)
    around = Surroundings(
        hosts=hosts,
        address="127.0.0.1",
        port=free_port(),
        interface="lo" if sys.platform == "linux" else "lo0",
        dilation=config.factor(cores),
        network=NETWORK if rate else "as is",
    )
    limits = Limits(config.timeout_s, config.grace_s, config.stop_s)
    with Interrupts() as interrupts, interrupts.held():
        try:
            with HostRunner(limits, interrupts, on_line) as runner:
                for host, link in enumerate(config.shaped(cores)):
                    runner.start(command, {**base, **around.env(host, link if rate else None), MARK: mark})
                result = runner.follow()
        finally:
            kill_all(lambda: marked_pids(mark))
    interrupts.pass_on()
    return replace(result, factor=around.dilation, network=around.network)
