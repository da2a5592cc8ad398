"""What a lab is asked to be, and the arithmetic that fits it onto the cores there are.

Reference: Gupta et al., "To infinity and beyond: time-warped network emulation", NSDI 2006. Hosts that share
cores compute slower than machines of their own would; links slowed by the same factor keep the proportion of
computing to communicating, and every time divided by the factor is the time of real machines.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from omnizen.errors import UserError
from omnizen.lab.rates import Link, parse_rate, show_rate

MOST_HOSTS = 250


def num_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def oversubscription(speeds: Sequence[float], cores: int) -> float:
    """Return how many times slower the hosts compute here than on machines of their own, at least 1.

    Args:
        speeds: one relative speed per host; 1 is one whole core.
        cores: cores that the hosts share.

    Example:
        >>> oversubscription([1.0] * 8, 2)
        4.0
    """
    return max(1.0, sum(speeds) / cores)


@dataclass(frozen=True, kw_only=True, slots=True)
class LabConfig:
    """A lab of hosts on one machine.

    Args:
        hosts: how many.
        rate: every link, both ways, as ``100mbit``.
        links: hosts whose link differs, by host number.
        cpu: one relative speed per host in (0, 1], 1 being a whole core; empty means all 1 and no quotas.
        dilation: factor by which links are slowed; ``"auto"`` is the oversubscription of the cores.
        timeout_s: after this the hosts are stopped.
        grace_s: how long the others may go on after a host has failed.
        stop_s: how long hosts may take to end after SIGINT, and again after SIGTERM, before SIGKILL.

    Example:
        >>> LabConfig(hosts=8, rate="100mbit", dilation="auto").factor(cores=2)
        4.0
    """

    hosts: int
    rate: str = "100mbit"
    links: Mapping[int, Link] = field(default_factory=dict)
    cpu: tuple[float, ...] = ()
    dilation: float | Literal["auto"] = 1.0
    timeout_s: float = 3600.0
    grace_s: float = 30.0
    stop_s: float = 5.0

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= MOST_HOSTS:
            raise UserError(f"a lab has between 1 and {MOST_HOSTS} hosts, got {self.hosts}")
        parse_rate(self.rate)
        for host in self.links:
            if not 0 <= host < self.hosts:
                raise UserError(
                    f"a link is given for host {host}; with {self.hosts} hosts they are 0 to {self.hosts - 1}"
                )
        if self.cpu and len(self.cpu) != self.hosts:
            raise UserError(f"cpu needs one speed for each of {self.hosts} hosts, got {len(self.cpu)}")
        for speed in self.cpu:
            if not 0.0 < speed <= 1.0:
                raise UserError(
                    f"cpu speeds are parts of one core, above 0 and at most 1 (the fastest host), got {speed:g}"
                )
        if isinstance(self.dilation, str):
            if self.dilation != "auto":
                raise UserError(f"dilation is 'auto' or a factor of at least 1, got {self.dilation!r}")
        elif not (math.isfinite(self.dilation) and self.dilation >= 1.0):
            raise UserError(f"dilation is 'auto' or a factor of at least 1, got {self.dilation:g}")
        for name in ("timeout_s", "grace_s", "stop_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise UserError(f"{name} must be a number of seconds from 0, got {getattr(self, name)}")

    @property
    def speeds(self) -> tuple[float, ...]:
        """Each host's relative speed."""
        return self.cpu or (1.0,) * self.hosts

    def factor(self, cores: int) -> float:
        """Return the dilation factor F on this many cores: times measured / F are those of real machines."""
        return oversubscription(self.speeds, cores) if self.dilation == "auto" else self.dilation

    def shares(self, cores: int) -> tuple[float, ...] | None:
        """Return each host's share of a core, or None where no quota is needed.

        A dilation beyond the oversubscription slows the processors too, so that compute keeps its proportion.
        """
        crowded, asked = oversubscription(self.speeds, cores), self.factor(cores)
        if not self.cpu and asked <= crowded:
            return None
        slowdown = max(crowded, asked)
        return tuple(speed / slowdown for speed in self.speeds)

    def shaped(self, cores: int) -> tuple[Link, ...]:
        """Return each host's link as it is shaped, after dilation."""
        common, factor = Link.of(self.rate), self.factor(cores)
        return tuple(self.links.get(host, common).slowed(factor) for host in range(self.hosts))

    def facts(self, cores: int) -> str:
        """Return one line on what the lab makes of the machine.

        Example:
            >>> LabConfig(hosts=8, dilation="auto").facts(cores=2)
            '8 hosts on 2 cores: compute is 4x slower than on 8 machines, so links run at 25 Mbit/s for \
100 Mbit/s; times divided by 4 are those of real machines'
        """
        factor, shares = self.factor(cores), self.shares(cores)
        crowded = max(oversubscription(self.speeds, cores), factor if shares else 1.0)
        hosts, machines = _count(self.hosts, "host"), _count(self.hosts, "machine")
        here = f"{hosts} on {_count(cores, 'core')}: compute is {crowded:.3g}x slower than on {machines}"
        if crowded == 1.0:
            here = f"{hosts} on {_count(cores, 'core')}: compute is as fast as on {machines}"
        rate = parse_rate(self.rate)
        own = f" ({_count(len(self.links), 'host')} with links of their own)" if self.links else ""
        if factor == 1.0:
            note = ""
            if crowded > 1.0:
                note = ", which flatters methods that compute much; --dilation auto slows the links as well"
            return f"{here}; links run at {show_rate(rate)}{own}{note}"
        divided = "those of real machines"
        if factor < crowded:
            divided = "only roughly those of real machines, as compute is slowed more than the links"
        return (
            f"{here}, so links run at {show_rate(rate / factor)} for {show_rate(rate)}{own}; "
            f"times divided by {factor:.3g} are {divided}"
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
