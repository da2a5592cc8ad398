"""Start one worker a host and wait for all, in the lab's namespaces or over loopback; always bounded."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

OnLine = Callable[[int, str], None]
GRACE_S = 3.0


class Launch(Protocol):
    """Runs a command once on every host; returns the exit status of each."""

    def __call__(self, command: Sequence[str], on_line: OnLine, limit_s: float) -> list[int]:
        """Start, forward each line of output, and end everything within the limit."""
        ...


@dataclass(frozen=True)
class Loopback:
    """Workers as processes of this machine on the loopback interface.

    Args:
        hosts: how many.
        rate_bytes_per_s: rate at which each worker paces its own sending; None for no pacing.
    """

    hosts: int
    rate_bytes_per_s: float | None = None

    def __call__(self, command: Sequence[str], on_line: OnLine, limit_s: float) -> list[int]:
        """Run the command on every host."""
        network = "as is" if self.rate_bytes_per_s is None else "loopback, paced in software"
        lab = {"hosts": self.hosts, "rate_bytes_per_s": self.rate_bytes_per_s, "dilation": 1.0, "network": network}
        shared = {
            "WORLD_SIZE": str(self.hosts), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1", "OMNIZEN_LAB": json.dumps(lab),
        }  # fmt: skip
        crew: list[subprocess.Popen[str]] = []
        readers: list[threading.Thread] = []
        deadline = time.monotonic() + limit_s
        try:
            for rank in range(self.hosts):
                place = {"RANK": str(rank), "GROUP_RANK": str(rank), "NODE_RANK": str(rank)}
                worker = subprocess.Popen(
                    list(command), env={**os.environ, **with_source(shared), **place}, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
                crew.append(worker)
                readers.append(threading.Thread(target=_forward, args=(rank, worker, on_line), daemon=True))
                readers[-1].start()
            for worker in crew:
                try:
                    worker.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    break
        finally:
            end(crew)
            for reader in readers:
                reader.join(GRACE_S)
        return [worker.returncode for worker in crew]


@dataclass(frozen=True)
class InLab:
    """Workers in network namespaces of this machine, joined by shaped links.

    Args:
        hosts: how many.
        rate: of each link, as the lab reads it ("100mbit").
        dilation: ``auto`` or a factor by which the lab slows the links.
    """

    hosts: int
    rate: str
    dilation: float | Literal["auto"] = 1.0

    def __call__(self, command: Sequence[str], on_line: OnLine, limit_s: float) -> list[int]:
        """Run the command on every host."""
        from omnizen.lab import LabConfig, run_lab

        config = LabConfig(hosts=self.hosts, rate=self.rate, dilation=self.dilation, timeout_s=limit_s)
        result = run_lab(config, list(command), env=with_source({}), on_line=on_line)
        return list(result.returncodes)


def with_source(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with this package's source on the path, for checkouts that are not installed."""
    source = str(Path(__file__).parents[2])
    paths = [source, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**env, "PYTHONPATH": os.pathsep.join(dict.fromkeys(p for p in paths if p))}


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package in this Python."""
    return [sys.executable, "-u", "-m", module, *arguments]


def free_port() -> int:
    """Return a TCP port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end(crew: Sequence[subprocess.Popen[str]]) -> None:
    """Ask those who still run to end, then make them."""
    running = [worker for worker in crew if worker.poll() is None]
    for worker in running:
        _signal(worker, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for worker in running:
        try:
            worker.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(worker, signal.SIGKILL)
            worker.wait()


def _signal(worker: subprocess.Popen[str], number: signal.Signals) -> None:
    try:
        os.killpg(worker.pid, number)
    except ProcessLookupError:
        return


def _forward(rank: int, worker: subprocess.Popen[str], on_line: OnLine) -> None:
    assert worker.stdout is not None
    with worker.stdout:
        for line in worker.stdout:
            on_line(rank, line.rstrip("\n"))
