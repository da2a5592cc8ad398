"""Start one worker a host and wait for all, in the lab's namespaces or over loopback; always bounded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

OnLine = Callable[[int, str], None]


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
        rate: rate to which each worker paces its own sending ("100mbit"); None for no pacing.
    """

    hosts: int
    rate: str | None = None

    def __call__(self, command: Sequence[str], on_line: OnLine, limit_s: float) -> list[int]:
        """Run the command on every host."""
        from omnizen.lab import run_local

        result = run_local(
            self.hosts, list(command), self.rate, timeout_s=limit_s, env=with_source({}), on_line=on_line
        )
        return list(result.returncodes)


@dataclass(frozen=True)
class InLab:
    """Workers in network namespaces of this machine, joined by shaped links.

    Args:
        hosts: how many.
        rate: of each link, as the lab reads it ("100mbit").
        dilation: ``auto`` or a factor by which the lab slows the links.
        cpu: each host's relative speed; all alike unless given.
    """

    hosts: int
    rate: str
    dilation: float | Literal["auto"] = 1.0
    cpu: tuple[float, ...] = ()

    def __call__(self, command: Sequence[str], on_line: OnLine, limit_s: float) -> list[int]:
        """Run the command on every host."""
        from omnizen.lab import LabConfig, run_lab

        config = LabConfig(
            hosts=self.hosts, rate=self.rate, dilation=self.dilation, cpu=self.cpu, timeout_s=limit_s
        )
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
