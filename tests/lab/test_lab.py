"""Labs as programs use them, with real namespaces."""

import json
import os
import signal
import sys
import threading

import pytest

from omnizen.errors import UserError
from omnizen.lab import Lab, LabConfig, Link, run_lab
from omnizen.lab.namespaces import pids_inside, tool

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("need_lab")]

SEND = """
import os, socket, sys, time
count, rank, size = int(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(address)
    for _ in range(size - 1):
        peer, _ = server.accept()
        got = 0
        while data := peer.recv(65536):
            got += len(data)
        print("got", got)
        peer.sendall(b"x")
else:
    while True:
        try:
            to = socket.create_connection(address, timeout=20)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    to.sendall(bytes(count * rank))
    to.shutdown(socket.SHUT_WR)
    to.recv(1)
"""


SLACK_BYTES = 2_000
"""Connecting, asking for addresses, and time-outs of a busy machine."""


def python(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", program, *map(str, arguments)]


def by_host(hosts: int):
    lines: list[list[str]] = [[] for _ in range(hosts)]
    return lines, lambda host, line: lines[host].append(line)


def test_bytes_on_the_interfaces_are_those_that_were_sent() -> None:
    count = 300_000
    result = run_lab(LabConfig(hosts=3, rate="100mbit"), python(SEND, count))
    assert result.returncodes == (0, 0, 0)
    assert result.tails[0] == (f"got {count}", f"got {2 * count}") or result.tails[0] == (
        f"got {2 * count}",
        f"got {count}",
    )
    assert result.tx_payload_bytes == pytest.approx((0, count, 2 * count), abs=SLACK_BYTES)
    assert result.rx_payload_bytes == pytest.approx((3 * count, 0, 0), abs=SLACK_BYTES)
    for sent, payload in zip(result.tx_bytes, result.tx_payload_bytes, strict=True):
        assert payload < sent < 1.1 * payload + 50_000  # headers of the data, and acknowledgements
    assert abs(sum(result.tx_bytes) - sum(result.rx_bytes)) < SLACK_BYTES  # nothing is lost on the way


def test_both_ends_of_every_link_are_shaped_as_asked() -> None:
    config = LabConfig(hosts=2, rate="100mbit", links={1: Link.of("10mbit", "2gbit")}, dilation=2.0)
    with Lab(config) as lab:
        assert shaped(lab) == [(6_250_000, 6_250_000), (625_000, 125_000_000)]
        assert bursts(lab, 1) == (6_000, 125_000)
        lab.set_rate(0, "1gbit", "20mbit")
        assert shaped(lab)[0] == (62_500_000, 1_250_000)
        with pytest.raises(UserError, match="no host 2"):
            lab.set_rate(2, "1gbit")
        assert json.loads(lab.env(0)["OMNIZEN_LAB"])["rate_bytes_per_s"] == 1_250_000


def options(lab: Lab, namespace: str, device: str) -> dict:
    (bucket,) = json.loads(tool(["tc", "-n", namespace, "-j", "qdisc", "show", "dev", device]))
    assert bucket["kind"] == "tbf"
    return bucket["options"]


def shaped(lab: Lab) -> list[tuple[int, int]]:
    return [
        (
            options(lab, lab.network.namespace(host), "eth0")["rate"],
            options(lab, lab.network.switch, f"port{host}")["rate"],
        )
        for host in range(lab.config.hosts)
    ]


def bursts(lab: Lab, host: int) -> tuple[int, ...]:
    up = options(lab, lab.network.namespace(host), "eth0")["burst"]
    down = options(lab, lab.network.switch, f"port{host}")["burst"]
    return tuple(round(burst, -2) for burst in (up, down))


def test_hosts_find_torchruns_environment_and_reno() -> None:
    show = (
        "import os, json; cc = open('/proc/sys/net/ipv4/tcp_congestion_control').read();"
        "print(json.dumps({**os.environ, 'cc': cc}))"
    )
    lines, on_line = by_host(2)
    run_lab(LabConfig(hosts=2, dilation=2.0), python(show), env={"MINE": "a b", "RANK": "7"}, on_line=on_line)
    for host in range(2):
        env = json.loads(lines[host][0])
        expected = {
            "RANK": str(host), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(host), "NODE_RANK": str(host), "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "MINE": "a b", "cc": "reno\n",
        }  # fmt: skip
        assert {key: env[key] for key in expected} == expected
        about = json.loads(env["OMNIZEN_LAB"])
        assert about["hosts"] == 2
        assert about["dilation"] == 2.0
        assert about["rate_bytes_per_s"] == 6_250_000
        assert about["network"] == "namespaces, shaped links"


def test_processors_get_their_quotas() -> None:
    config = LabConfig(hosts=2, cpu=(1.0, 0.25), dilation=4.0)
    with Lab(config) as lab:
        groups = lab._quotas
        assert groups is not None
        result = lab.run(["cat", "/proc/self/cgroup"])
        for host, quota in enumerate((2500, 1000)):
            assert any(line.endswith(f"/{lab.network.name}/{host}") for line in result.tails[host])
            given = (
                groups.procs(host).with_name("cpu.cfs_quota_us" if groups.version == 1 else "cpu.max").read_text()
            )
            assert int(given.split()[0]) == quota


@pytest.mark.parametrize("hosts", [1, 33])
def test_any_number_of_hosts(hosts: int) -> None:
    result = run_lab(LabConfig(hosts=hosts), ["sh", "-c", "echo $RANK"])
    assert result.tails == tuple((str(host),) for host in range(hosts))
    assert result.exit_code == 0


def test_the_first_failure_decides_the_exit_code_and_is_named() -> None:
    # host 1 fails at once; host 0 waits to be stopped
    result = run_lab(
        LabConfig(hosts=2, grace_s=0.0), ["sh", "-c", "if [ $RANK = 1 ]; then exit 7; else exec sleep 50; fi"]
    )
    assert result.returncodes == (-signal.SIGTERM, 7)
    assert (result.exit_code, result.first_failure) == (7, 1)
    assert "host 1 ended with exit code 7" in result.notes[0]
    assert "(0) were stopped 0 s after host 1 had failed" in result.notes[1]


def test_others_may_finish_within_the_grace() -> None:
    result = run_lab(LabConfig(hosts=2, grace_s=50), ["sh", "-c", "[ $RANK = 0 ] || exit 3; sleep 0.5; echo done"])
    assert result.returncodes == (0, 3)
    assert result.tails[0] == ("done",)


def test_a_killed_host_is_named_and_what_it_had_started_is_killed() -> None:
    lab = Lab(LabConfig(hosts=2, grace_s=0.0, stop_s=0.1))
    pids = {}

    def kill_it(host: int, line: str) -> None:
        pids[host] = int(line)
        if len(pids) == 2:
            os.kill(pids[1], signal.SIGKILL)

    with lab:
        names = lab.network.namespaces
        result = lab.run(["sh", "-c", "setsid sleep 900 & trap '' TERM; echo $$; sleep 901"], on_line=kill_it)
        assert result.returncodes == (-signal.SIGKILL, -signal.SIGKILL)
        assert result.exit_code == 137
        assert "host 1 was ended by SIGKILL" in result.notes[0]
        assert len(pids_inside(names)) >= 2  # both hosts' sleepers have a session of their own
    assert pids_inside(names) == []


def test_the_time_limit_stops_all() -> None:
    result = run_lab(LabConfig(hosts=2, timeout_s=0.2), ["sleep", "60"])
    assert result.returncodes == (-signal.SIGTERM, -signal.SIGTERM)
    assert (result.exit_code, result.timed_out) == (124, True)


def test_an_exception_of_the_caller_leaves_nothing() -> None:
    def broken(host: int, line: str) -> None:
        raise ZeroDivisionError(line)

    with pytest.raises(ZeroDivisionError, match="hello"):
        run_lab(LabConfig(hosts=2), ["sh", "-c", "echo hello; sleep 900"], on_line=broken)


def test_two_labs_at_once_do_not_meet() -> None:
    results: dict[int, tuple] = {}

    def work(number: int) -> None:
        result = run_lab(LabConfig(hosts=3, rate="100mbit"), python(SEND, number * 100_000))
        results[number] = (result.returncodes, result.rx_payload_bytes[0])

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    for number in (1, 2):
        codes, received = results[number]
        assert codes == (0, 0, 0)
        assert received == pytest.approx(300_000 * number, abs=SLACK_BYTES)


def test_a_thread_may_stop_a_lab() -> None:
    with Lab(LabConfig(hosts=1)) as lab:
        result = lab.run(["sh", "-c", "echo up; exec sleep 900"], on_line=lambda host, line: lab.stop())
        assert result.interrupted == signal.SIGINT
        assert result.returncodes == (-signal.SIGINT,)
        with pytest.raises(KeyboardInterrupt):
            lab.run(["true"])  # it was told to stop


def test_an_unknown_command_is_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lab, "__enter__", lambda self: pytest.fail("built"))
    with pytest.raises(UserError, match="'no-such-program' was not found"):
        run_lab(LabConfig(hosts=2), ["no-such-program"])
    with pytest.raises(UserError, match="no command was given"):
        run_lab(LabConfig(hosts=2), [])


def test_slowed_processes_are_found_even_when_their_namespace_was_deleted() -> None:
    with Lab(LabConfig(hosts=1, cpu=(0.5,))) as lab:
        lab.run(["sh", "-c", "setsid sleep 900 &"])
        assert len(lab._quotas.pids()) == 1
        tool(["ip", "netns", "delete", lab.network.namespace(0)])
        assert pids_inside(lab.network.namespaces) == []
    assert lab._quotas.pids() == []


def test_a_lab_that_cannot_be_built_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from omnizen.lab.network import Network

    def fail(self: Network, host: int, link: Link, *, verb: str) -> None:
        if host == 1:
            tool(["tc", "qdisc", "add", "dev", "nowhere", "root", "tbf"])

    monkeypatch.setattr(Network, "shape", fail)
    with pytest.raises(UserError, match="tc qdisc add dev nowhere root tbf failed"), Lab(LabConfig(hosts=2)):
        pytest.fail("built")


def test_the_hosts_see_only_each_other() -> None:
    result = run_lab(LabConfig(hosts=1), ["ip", "-j", "addr"])
    links = json.loads("".join(result.tails[0]))
    assert sorted(link["ifname"] for link in links) == ["eth0", "lo"]
    assert [a["local"] for link in links for a in link["addr_info"]] == ["127.0.0.1", "10.77.0.1"]
