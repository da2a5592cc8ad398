"""One lab's network: a namespace with a bridge, a namespace per host, shaped links between them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnizen.errors import OmnizenError
from omnizen.lab.namespaces import NAMED, kill_all, pids_inside, tool, write_settings
from omnizen.lab.rates import Link

MTU = 1500
QUEUE_MS = 200
LEAST_BURST_BYTES, FAST_BURST_BYTES = 6_000, 70_000
SLOW_BURST_S, FAST_BURST_S = 2e-3, 1e-3
SETTINGS = {
    "ipv6/conf/all/disable_ipv6": "1",  # its neighbour discovery would be counted as the hosts' traffic
    "ipv6/conf/default/disable_ipv6": "1",
}
ETC, HOSTS = Path("/etc/netns"), Path("/etc/hosts")
"""`ip netns exec NAME` shows the files of the folder NAME below the first in place of those in /etc."""
CONGESTION = {"ipv4/tcp_congestion_control": "reno"}
"""What a namespace may always set; others depend on the machine."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What went over a host's link since it was made: bytes with all headers, and packets."""

    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int


class Network:
    """The namespaces ``<name>-switch``, ``<name>-0``, ``<name>-1``, ... and their links.

    Addresses are 10.77.0.1 and on; they are seen inside these namespaces only, so labs cannot meet.
    """

    def __init__(self, name: str, hosts: int) -> None:
        self.name, self.hosts = name, hosts
        self.switch = f"{name}-switch"

    def namespace(self, host: int) -> str:
        """Return the name of a host's namespace."""
        return f"{self.name}-{host}"

    def address(self, host: int) -> str:
        """Return a host's address."""
        return f"10.77.0.{host + 1}"

    @property
    def namespaces(self) -> list[str]:
        """All namespaces of the lab."""
        return [self.switch, *(self.namespace(host) for host in range(self.hosts))]

    def build(self, links: Sequence[Link]) -> None:
        """Make everything; ``links[host]`` is shaped as given."""
        _batch("ip", [f"netns add {name}" for name in self.namespaces])
        self._name_hosts()
        write_settings(self.namespaces, SETTINGS)
        write_settings(self.namespaces[1:], CONGESTION)
        wires = ["link add bridge0 type bridge mcast_snooping 0", "link set bridge0 up"]
        for host in range(self.hosts):
            ends = f"port{host} mtu {MTU} type veth peer name eth0 mtu {MTU} netns {self.namespace(host)}"
            wires += [f"link add {ends}", f"link set port{host} master bridge0 up"]
        _batch("ip", wires, self.switch)
        for host in range(self.hosts):
            end = [f"addr add {self.address(host)}/24 dev eth0", "link set lo up", "link set eth0 up"]
            _batch("ip", end, self.namespace(host))
        for host, link in enumerate(links):
            self.shape(host, link, verb="add")

    def _name_hosts(self) -> None:
        """Give addresses names inside; without them c10d warns of each connection whose host it cannot name."""
        forms = ("", "::ffff:")  # sockets for both kinds of addresses see an old one in the form of a new one
        names = [f"{form}{self.address(host)} host{host}\n" for form in forms for host in range(self.hosts)]
        with suppress(OSError):  # where /etc cannot be written, warnings are all that comes of it
            text = HOSTS.read_text(encoding="utf-8") + "\n" + "".join(names)
            for namespace in self.namespaces[1:]:
                (ETC / namespace).mkdir(parents=True)
                (ETC / namespace / "hosts").write_text(text, encoding="utf-8")

    def shape(self, host: int, link: Link, *, verb: str = "change") -> None:
        """Set what a host can send (at its own end) and receive (at the bridge's end)."""
        up, down = _bucket(link.up_bit_per_s), _bucket(link.down_bit_per_s)
        _batch("tc", [f"qdisc {verb} dev eth0 root {up}"], self.namespace(host))
        _batch("tc", [f"qdisc {verb} dev port{host} root {down}"], self.switch)

    def counted(self) -> list[Counted]:
        """Return what each host sent and received, as its two shapers let it pass.

        The interfaces' own counters take a segment of 64 KiB for one packet and miss the headers of its parts.
        """
        ups = [self._shapers(self.namespace(host))["eth0"] for host in range(self.hosts)]
        ports = self._shapers(self.switch)
        downs = [ports[f"port{host}"] for host in range(self.hosts)]
        return [
            Counted(up["bytes"], down["bytes"], up["packets"], down["packets"])
            for up, down in zip(ups, downs, strict=True)
        ]

    def _shapers(self, namespace: str) -> dict[str, dict[str, Any]]:
        shown = json.loads(tool(["tc", "-n", namespace, "-j", "-s", "qdisc", "show"]))
        return {shaper["dev"]: shaper for shaper in shown if shaper["kind"] == "tbf"}


def destroy(name: str) -> int:
    """Kill what runs in the namespaces of a lab and delete them; return how many processes were killed."""
    names = [entry.name for entry in NAMED.glob(f"{name}-*")] if NAMED.is_dir() else []
    killed = kill_all(lambda: pids_inside(names))
    for namespace in names:
        tool(["ip", "netns", "delete", namespace])
    for folder in ETC.glob(f"{name}-*"):
        shutil.rmtree(folder, ignore_errors=True)
    left = [entry.name for entry in NAMED.glob(f"{name}-*")] if NAMED.is_dir() else []
    if left:
        raise OmnizenError(f"namespaces {', '.join(left)} are still there after they were deleted")
    return killed


def burst_bytes(bit_per_s: float) -> int:
    """Return what a shaper lets pass at once after a pause.

    Small, as a burst of 70 kB hides a message of 60 kB on a slow link altogether; but no link gets less than
    four packets, and fast ones need a whole segment of 64 KiB, or a millisecond of their rate, to reach it.

    Example:
        >>> [burst_bytes(rate) for rate in (1e6, 25e6, 100e6, 400e6, 1e9)]
        [6000, 6250, 25000, 70000, 125000]
    """
    bytes_per_s = bit_per_s / 8
    slow = max(LEAST_BURST_BYTES, bytes_per_s * SLOW_BURST_S)
    return round(min(slow, max(FAST_BURST_BYTES, bytes_per_s * FAST_BURST_S)))


def _bucket(bit_per_s: float) -> str:
    return f"tbf rate {round(bit_per_s)}bit burst {burst_bytes(bit_per_s)}b latency {QUEUE_MS}ms"


def _batch(program: str, lines: list[str], namespace: str | None = None) -> None:
    inside = ["-n", namespace] if namespace else []
    tool([program, *inside, "-batch", "-"], stdin="\n".join(lines) + "\n")
