"""Starts one process for each rank and waits for all of them; none outlives the call."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """How a rank's process ended, and what it wrote."""

    code: int
    out: str
    err: str


def run(program: Path, *arguments: str, size: int, limit_s: float) -> list[Ended]:
    """Run a program once on every rank, in torchrun's environment, over loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    shared |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    started = [
        subprocess.Popen(
            [sys.executable, str(program), *arguments],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [rank.communicate(timeout=limit_s) for rank in started]
        return [Ended(rank.returncode, *texts) for rank, texts in zip(started, said, strict=True)]
    finally:
        for rank in started:
            if rank.poll() is None:
                rank.kill()
                rank.wait(10)
