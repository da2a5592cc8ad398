"""Benchmark rows: one JSON object a line, with keys that never change, and where they were measured."""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from omnizen.errors import UserError, nearest
from omnizen.measure.files import check_can_write

PACKAGES = ("omnizen", "torch", "numba", "numpy", "torchft")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured number.

    Args:
        bench: ``e2e``, ``sync`` or ``kernels``.
        case: model and data, or the pattern of a synthetic gradient.
        method: ``ddp``, ``omnizen``, ... or a reducer's name.
        hosts: workers, one a host.
        rate_mbit: rate of each link in Mbit/s before any dilation; None where links are as they are.
        metric: what was measured; ``failed`` when the method did not finish (``params`` has the reason).
        value: median over the repeats (steps for ``step_s``).
        unit: unit of value, p20 and p80.
        p20: 20th percentile.
        p80: 80th percentile.
        repeats: how many samples the median is over.
        params: everything else that the number depends on.
    """

    bench: str
    case: str
    method: str
    hosts: int
    rate_mbit: float | None
    metric: str
    value: float | None
    unit: str
    p20: float | None
    p80: float | None
    repeats: int
    params: dict[str, Any] = field(default_factory=dict)
    machine: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = ""


KEYS = tuple(f.name for f in fields(Row))


def measured(
    samples: Sequence[float], *, bench: str, case: str, method: str, hosts: int, rate_mbit: float | None,
    metric: str, unit: str, params: dict[str, Any],
) -> Row:  # fmt: skip
    """Make a row of the median and spread of some samples, with this machine filled in.

    Raises:
        UserError: there is no sample.
    """
    if not samples:
        raise UserError(f"no sample of {metric} for {method} on {case}: nothing was measured")
    return Row(
        bench=bench, case=case, method=method, hosts=hosts, rate_mbit=rate_mbit, metric=metric,
        value=quantile(samples, 0.5), unit=unit, p20=quantile(samples, 0.2), p80=quantile(samples, 0.8),
        repeats=len(samples), params=params, machine=machine(), versions=versions(), commit=commit(),
    )  # fmt: skip


def failed(
    reason: str, *, bench: str, case: str, method: str, hosts: int, rate_mbit: float | None, params: dict[str, Any]
) -> Row:
    """Make the row of a method that did not finish."""
    return Row(
        bench=bench, case=case, method=method, hosts=hosts, rate_mbit=rate_mbit, metric="failed",
        value=None, unit="", p20=None, p80=None, repeats=0, params={**params, "reason": reason},
        machine=machine(), versions=versions(), commit=commit(),
    )  # fmt: skip


def quantile(samples: Sequence[float], q: float) -> float:
    """Return the q-quantile by linear interpolation.

    Example:
        >>> quantile([1.0, 2.0, 4.0], 0.5), quantile([0.0, 10.0], 0.2)
        (2.0, 2.0)
    """
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def append(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to a file, one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(asdict(row), allow_nan=False) + "\n")


def adding(path: Path | None) -> Callable[[Sequence[Row]], None]:
    """Return what adds rows to a file as they come, so that an interrupt loses none; None keeps nothing.

    A file that cannot be written is found at once and not after hours.
    """
    if path is None:
        return lambda _: None
    check_can_write(path)
    append(path, [])
    return partial(append, path)


def read(path: Path) -> list[Row]:
    """Read a file of rows.

    Raises:
        UserError: a line is not JSON, misses a key or has one too many.
    """
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a text in UTF-8 (at byte {error.start}), as a file of rows is") from error
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number}: not a row, which is a JSON object with {', '.join(KEYS)}")
        for key in record:
            if key not in KEYS:
                raise UserError(f"{path}, line {number}: unknown key: {nearest(key, KEYS)}")
        missing = [key for key in KEYS if key not in record]
        if missing:
            raise UserError(f"{path}, line {number}: missing {', '.join(missing)}")
        rows.append(Row(**record))
    return rows


@functools.cache
def machine() -> str:
    """Return processor, cores, memory and kernel in one line."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{name}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}"


@functools.cache
def _versions() -> tuple[tuple[str, str], ...]:
    found = [("python", platform.python_version())]
    for package in PACKAGES:
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            if package == "omnizen":
                from omnizen._version import __version__

                found.append((package, __version__))
    return tuple(found)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that the numbers depend on, as far as installed."""
    return dict(_versions())


@functools.cache
def commit() -> str:
    """Return the commit of this source tree, ``-changed`` appended when files differ; empty outside a checkout."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10)
        if head.returncode:
            return ""
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no", str(here.parent)],
            capture_output=True, text=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return head.stdout.strip() + ("-changed" if changed.stdout.strip() else "")
