"""Every test here must leave the machine as it found it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnizen.lab import available
from omnizen.lab.state import RUN_DIR


@pytest.fixture(autouse=True, scope="session")
def interrupts_are_heard() -> Iterator[None]:
    """Shells start commands in the background with SIGINT ignored, and all that these start ignore it too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def traces(owners: set[int]) -> set[str]:
    """Everything that labs of these processes made and must remove, and what they started."""
    places = [
        Path("/run/netns"),
        Path("/etc/netns"),
        RUN_DIR,
        *Path("/sys/fs/cgroup").glob("*"),
        Path("/sys/fs/cgroup"),
    ]
    made = {str(path) for place in places for pid in owners for path in place.glob(f"*{pid}-*")}
    return made | {f"process {pid}" for pid in children()}


def children() -> set[int]:
    """Processes that this test process started and that still run (or wait to be reaped)."""
    mine = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            mine.add(int(stat.parent.name))
    return mine


@pytest.fixture
def owners() -> Iterator[set[int]]:
    """Processes that own labs, to which tests add; their labs must leave nothing behind."""
    pids = {os.getpid()}
    before = traces(pids)
    yield pids
    assert traces(pids) - before == set()


@pytest.fixture
def need_lab(owners: set[int]) -> None:
    """Skip with the reason where no lab can be had."""
    reason = available()
    if reason:
        pytest.skip(reason)
