"""``omnizen lab`` as people type it, and what is left when it is ended by force."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omnizen.lab import clean
from omnizen.lab.namespaces import pids_inside
from omnizen.lab.state import LabFile, start_ticks

pytestmark = [pytest.mark.lab, pytest.mark.procs, pytest.mark.usefixtures("need_lab")]


def omnizen(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omnizen", *arguments], capture_output=True, text=True, timeout=50, check=False
    )


@contextmanager
def started(owners: set[int], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a lab and give it back when both hosts have said 'up'.

    Tests that run under ``nohup`` ignore hangups, and what they start inherits that.
    """
    process = subprocess.Popen(
        ["env", "--default-signal=HUP", sys.executable, "-m", "omnizen", "lab", "--hosts", "2", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    owners.add(process.pid)
    with process:
        watchdog = threading.Timer(40, process.kill)
        watchdog.start()
        try:
            for _ in range(2):
                assert any(line.endswith("up\n") for line in process.stdout)
            yield process
        finally:
            watchdog.cancel()
            if process.poll() is None:
                process.terminate()


def names_of(pid: int) -> list[str]:
    return [path.name for path in Path("/run/netns").glob(f"omnizen-{pid}-*")]


def running(namespaces: list[str], argument: str) -> int:
    """Count the processes in these namespaces that were started with an argument."""
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in pids_inside(namespaces)]
    return sum(argument.encode() in line for line in lines)


def test_output_has_prefixes_and_the_table_ends_it() -> None:
    done = omnizen(
        "lab", "--hosts", "2", "--rate", "10mbit", "--", "sh", "-c", 'echo "a  b"; printf end; exit $RANK'
    )
    lines = done.stdout.splitlines()
    assert "2 hosts on" in lines[0]
    assert "links run at" in lines[0]
    for host in (0, 1):
        assert [line for line in lines if line.startswith(f"host {host} |")] == [
            f"host {host} | a  b",
            f"host {host} | end",
        ]
    assert "host 1 ended with exit code 1" in done.stdout
    assert "received" in done.stdout
    assert done.returncode == 1


def test_arguments_reach_the_command_unchanged() -> None:
    given = ["a b", 'it\'s "q"', "", "*", "--", "--rate", "$RANK", "ü"]
    done = omnizen(
        "lab", "--hosts", "1", "--", sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *given
    )
    assert f"host 0 | {given!a}" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rate", "100", "--", "true"], "has no unit"),
        (["--cpu", "1,x", "--", "true"], "--cpu needs numbers such as 1,1,0.5, got 'x'"),
        (["--dilation", "autto", "--", "true"], "needs 'auto' or a factor, got 'autto'"),
        (["--", "no-such-program"], "'no-such-program' was not found"),
        ([], "no command was given"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], says: str) -> None:
    done = omnizen("lab", *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "ending", "code"),
    [
        (signal.SIGINT, -signal.SIGINT, 130),
        (signal.SIGTERM, -signal.SIGTERM, 143),
        (signal.SIGHUP, -signal.SIGTERM, 129),
    ],
)
def test_signals_are_passed_on_and_leave_nothing(
    owners: set[int], number: signal.Signals, ending: int, code: int
) -> None:
    with started(owners, "--", "sh", "-c", "setsid sleep 900 & echo up; exec sleep 901") as lab:
        inside = names_of(lab.pid)
        assert len(inside) == 3
        lab.send_signal(number)
        text = lab.stdout.read()
    assert lab.returncode == code
    assert f"{number.name} came and was passed on to the hosts still running (0, 1)" in text
    assert text.count(f" {ending} ") == 2
    assert names_of(lab.pid) == []


STUBBORN = """
import os, signal, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.write(1, b"heard %d\\n" % number))
os.write(1, b"up\\n")
time.sleep(900)
"""


def test_impatience_is_passed_on(owners: set[int]) -> None:
    with started(owners, "--", sys.executable, "-c", STUBBORN) as lab:
        for number in (signal.SIGINT, signal.SIGTERM):
            lab.send_signal(signal.SIGINT)
            for _ in range(2):
                assert any(line.endswith(f"heard {int(number)}\n") for line in lab.stdout)
        lab.send_signal(signal.SIGINT)
        text = lab.stdout.read()
    assert lab.returncode == 130
    assert "SIGKILL was sent to those that did not end (0, 1)" in text
    assert text.count(f" {-signal.SIGKILL} ") == 2


def test_after_a_kill_of_the_lab_its_hosts_end_and_clean_removes_the_rest(owners: set[int]) -> None:
    with started(owners, "--cpu", "1,0.5", "--", "sh", "-c", "setsid sleep 900 & echo up; exec sleep 901") as lab:
        names = names_of(lab.pid)
        assert omnizen("lab", "--clean").returncode == 0
        assert names_of(lab.pid) == names  # it runs, so it is not touched
        lab.kill()
    assert lab.returncode == -signal.SIGKILL
    assert len(names) == 3
    assert names_of(lab.pid) == names
    end_s = time.monotonic() + 30
    while running(names, "901"):  # the hosts' own processes die with the lab, without any help
        assert time.monotonic() < end_s
        time.sleep(0.01)
    assert running(names, "900") == 2  # what they had started in sessions of its own does not
    done = omnizen("lab", "--clean")
    assert done.returncode == 0
    assert f"omnizen-{lab.pid}-" in done.stdout
    assert names_of(lab.pid) == []
    assert pids_inside(names) == []


def test_a_reused_process_id_does_not_protect_a_dead_lab(tmp_path: Path) -> None:
    file = LabFile.create(tmp_path)
    assert file.alive()
    assert clean(tmp_path) == []
    later = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()) - 1}
    file.path.write_text(json.dumps(later))
    assert not file.alive()
    assert clean(tmp_path) == [file.name]
    assert list(tmp_path.iterdir()) == []


def test_cleaning_nothing_says_so(tmp_path: Path) -> None:
    assert clean(tmp_path / "not-there") == []
    (tmp_path / "omnizen-evil*.json").write_text('{"pid": 1, "start_ticks": 0}')
    assert clean(tmp_path) == []


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"pid": 1}', b"\xff"])
def test_a_damaged_file_of_a_lab_is_removed_once_its_owner_is_gone_and_no_sooner(tmp_path, damage):
    ours, gone = (tmp_path / f"omnizen-{pid}-abcd.json" for pid in (os.getpid(), 2**30))
    for path in (ours, gone):
        path.write_bytes(damage)
    assert clean(tmp_path) == [gone.stem]
    assert list(tmp_path.iterdir()) == [ours]


def test_what_is_not_a_labs_is_left_alone(tmp_path):
    for name in (".x-y", ".-", "omnizen-x.json"):
        (tmp_path / name).write_text("")
    (tmp_path / "omnizen-1073741824-abcd.json").mkdir()
    assert clean(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 4
