"""Hosts of a lab know each other's names, and a demo that is asked to end leaves nothing behind."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from omnizen.lab import LabConfig, run_lab

pytestmark = [pytest.mark.lab, pytest.mark.procs, pytest.mark.usefixtures("need_lab")]
NAMED, ETC = Path("/run/netns"), Path("/etc/netns")


def of(pid: int) -> list[Path]:
    return [path for folder in (NAMED, ETC) if folder.is_dir() for path in folder.glob(f"omnizen-{pid}-*")]


def test_hosts_can_be_named_by_their_addresses() -> None:
    said = []
    code = "import socket; print(*(socket.gethostbyaddr(f'{form}10.77.0.2')[0] for form in ('', '::ffff:')))"
    run_lab(
        LabConfig(hosts=2, rate="100mbit"), [sys.executable, "-c", code], on_line=lambda *line: said.append(line)
    )
    assert sorted(said) == [(0, "host1 host1"), (1, "host1 host1")]
    assert of(os.getpid()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_demo_that_is_asked_to_end_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("a b c d e f g h " * 2000)
    command = ["demo", "--workers", "2", "--text", str(tmp_path / "text"), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "omnizen", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(50, process.kill)
    watchdog.start()
    with process:
        try:
            assert process.stdout is not None
            assert any("reading the data" in line for line in process.stdout), (
                "a worker speaks: the hosts are there"
            )
            assert len([path for path in of(process.pid) if path.parent == NAMED]) == 3
            process.send_signal(number)
            said = process.stdout.read()
        finally:
            watchdog.cancel()
            process.kill()
    assert process.returncode == code
    assert "no worker and no link was left behind" in said
    assert of(process.pid) == []
