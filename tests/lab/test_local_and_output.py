"""Loopback runs, and the output of hosts; neither needs root."""

import json
import os
import signal
import sys

import pytest

from omnizen.errors import UserError
from omnizen.lab import LabResult, local, namespaces, run_local
from omnizen.lab.interrupts import Interrupts, signal_name
from omnizen.lab.local import MARK, marked_pids
from omnizen.lab.output import HostOutput

pytestmark = pytest.mark.usefixtures("owners")


def shown(data: bytes) -> list[str]:
    """Return the lines made of what a host wrote."""
    lines: list[str] = []
    reader, writer = os.pipe()
    output = HostOutput(reader, lines.append)
    for start in range(0, len(data), 50_000):
        os.write(writer, data[start : start + 50_000])
        while output.read():
            continue
    os.close(writer)
    output.finish()
    os.close(reader)
    return lines


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"no end", ["no end"]),
        (b"", []),
        (b"\n\n", ["", ""]),
        (b"10%\r50%\r100%\n", ["100%"]),
        (b"dos\r\n", ["dos"]),
        (b"\x1b[31mred\x1b[0m\ttab\n", ["\x1b[31mred\x1b[0m\ttab"]),
        (b"\xff\x00\x07\n", ["\ufffd\ufffd\ufffd"]),
        ("grün\n".encode(), ["grün"]),
    ],
)
def test_whatever_a_host_writes_becomes_lines(data: bytes, lines: list[str]) -> None:
    assert shown(data) == lines


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_endless_lines_are_cut_and_nothing_is_lost(end: bytes) -> None:
    lines = shown(b"x" * 100_000 + end)
    assert "".join(lines) == "x" * 100_000
    assert max(map(len, lines)) == 16_384


def test_huge_output_arrives_whole() -> None:
    count = [0, 0]

    def on_line(host: int, line: str) -> None:
        assert line == "y" * 50
        count[host] += 1

    run_local(2, [sys.executable, "-c", "for _ in range(40000): print('y' * 50)"], on_line=on_line)
    assert count == [40_000, 40_000]


def test_local_hosts_find_their_environment() -> None:
    program = "import os, json; print(json.dumps(dict(os.environ)))"
    result = run_local(3, [sys.executable, "-c", program], "10mbit", dilation=2.0, env={"MINE": "1"})
    found = [json.loads(lines[0]) for lines in result.tails]
    assert [env["RANK"] for env in found] == ["0", "1", "2"]
    assert len({env["MASTER_PORT"] for env in found}) == 1
    for env in found:
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert env["GLOO_SOCKET_IFNAME"] == ("lo" if sys.platform == "linux" else "lo0")
        assert env["MINE"] == "1"
        about = json.loads(env["OMNIZEN_LAB"])
        assert about["network"] == "loopback, paced in software"
        assert about["rate_bytes_per_s"] == 625_000
        assert about["dilation"] == 2.0
    assert (result.tx_bytes, result.rx_bytes, result.factor) == (None, None, 2.0)
    assert result.network == "loopback, paced in software"


def test_loopback_may_stay_as_it_is() -> None:
    result = run_local(1, ["sh", "-c", "echo $OMNIZEN_LAB"], None)
    about = json.loads(result.tails[0][0])
    assert (about["network"], about["rate_bytes_per_s"]) == ("as is", None)
    assert result.network == "as is"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found by their environment in /proc")
def test_a_local_run_ends_what_its_hosts_left_running() -> None:
    marks = []
    result = run_local(
        2, ["sh", "-c", f"setsid sleep 900 & echo ${MARK}"], on_line=lambda host, line: marks.append(line)
    )
    assert result.returncodes == (0, 0)
    assert len(set(marks)) == 1
    assert marked_pids(marks[0]) == []


def test_local_failures_are_told_as_in_a_lab() -> None:
    result = run_local(2, ["sh", "-c", "if [ $RANK = 1 ]; then kill -9 $$; else exec sleep 50; fi"], grace_s=0.0)
    assert result.returncodes == (-signal.SIGTERM, -signal.SIGKILL)
    assert result.exit_code == 137
    with pytest.raises(UserError, match="'no-such-program' was not found"):
        run_local(2, ["no-such-program"])


def test_exit_codes_follow_the_shell() -> None:
    def ended(*codes: int, **others: object) -> int:
        first = next((host for host, code in enumerate(codes) if code), None)
        return LabResult(
            returncodes=codes, host_seconds=(), seconds=0.0, tails=(), first_failure=first, **others
        ).exit_code

    assert [ended(0, 0), ended(0, 5), ended(0, -9)] == [0, 5, 137]
    assert ended(0, -15, timed_out=True) == 124
    assert ended(0, -2, interrupted=2) == 130
    assert [signal_name(9), signal_name(40)] == ["SIGKILL", "signal 40"]


def test_signals_are_noted_while_held_and_raised_after() -> None:
    with Interrupts() as interrupts:
        with interrupts.held():
            signal.raise_signal(signal.SIGTERM)
            assert (interrupts.first, interrupts.count) == (signal.SIGTERM, 1)
        with pytest.raises(SystemExit, match="143"):
            interrupts.pass_on()
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.setattr(namespaces.sys, "platform", "darwin"), "needs Linux network namespaces"),
        (lambda m: m.setattr(namespaces.os, "geteuid", lambda: 1000), "needs root"),
        (lambda m: m.setattr(namespaces.shutil, "which", lambda name: None), "install the package iproute2"),
    ],
)
def test_what_a_lab_lacks_is_said(monkeypatch: pytest.MonkeyPatch, change, says: str) -> None:
    monkeypatch.setattr(namespaces.sys, "platform", "linux")
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 0)
    change(monkeypatch)
    assert says in namespaces.available.__wrapped__()


def test_systems_without_process_groups_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.os, "name", "nt")
    with pytest.raises(UserError, match="need Linux or macOS"):
        run_local(1, ["true"])
