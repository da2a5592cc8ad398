"""Slow processors: one control group per host, with a quota of processor time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from omnizen.errors import OmnizenError, UserError

PERIOD_US = 10_000
"""Short, so that a step is slowed evenly and does not run at full speed and then stand still."""
LEAST_QUOTA_US, MOST_PERIOD_US = 1_000, 1_000_000
"""Limits of the kernel."""


def quota_and_period(share: float) -> tuple[int, int]:
    """Return the quota and period, in microseconds, that give a host this share of one core.

    Shares under a tenth need a longer period, as the kernel takes no quota under a millisecond.

    Example:
        >>> quota_and_period(0.25), quota_and_period(0.04)
        ((2500, 10000), (1000, 25000))
    """
    if share * MOST_PERIOD_US < LEAST_QUOTA_US:
        raise UserError(f"{share:.2g} of a core is less than a quota can give; use fewer hosts or faster ones")
    quota_us = round(share * PERIOD_US)
    if quota_us >= LEAST_QUOTA_US:
        return quota_us, PERIOD_US
    return LEAST_QUOTA_US, round(LEAST_QUOTA_US / share)


def find_parent(mounts: str) -> tuple[Path, int] | None:
    """Return where processor control groups are made and the version of their interface, 1 or 2.

    Args:
        mounts: the text of ``/proc/self/mounts``.
    """
    unified = None
    for line in mounts.splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(place), 1
        if kind == "cgroup2" and unified is None:
            unified = Path(place)
    if unified and "cpu" in (unified / "cgroup.controllers").read_text().split():
        return unified, 2
    return None


class Quotas:
    """The control groups of one lab: ``<parent>/<name>/<host>``."""

    def __init__(self, name: str, parent: Path, version: int) -> None:
        self.version = version
        self.root, self._parent = parent / name, parent

    @classmethod
    def here(cls, name: str) -> Quotas:
        """Return the groups of this name on this machine; raises ``UserError`` where there are none."""
        found = find_parent(Path("/proc/self/mounts").read_text())
        if found is None:
            raise UserError(
                "processor speeds need the cpu controller of cgroups, which is not mounted here; "
                "mount it, or leave --cpu away"
            )
        return cls(name, *found)

    def make(self, shares: Sequence[float]) -> None:
        """Make one group per host with its share of a core."""
        try:
            if self.version == 2:
                (self._parent / "cgroup.subtree_control").write_text("+cpu")
            self.root.mkdir()
            if self.version == 2:
                (self.root / "cgroup.subtree_control").write_text("+cpu")
            for host, share in enumerate(shares):
                quota_us, period_us = quota_and_period(share)
                group = self.root / str(host)
                group.mkdir()
                if self.version == 2:
                    (group / "cpu.max").write_text(f"{quota_us} {period_us}")
                else:
                    (group / "cpu.cfs_period_us").write_text(str(period_us))
                    (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        except OSError as error:
            raise UserError(f"no processor quota can be set here ({error}); run without --cpu") from error

    def procs(self, host: int) -> Path:
        """Return the file into which a process of the host writes its id."""
        return self.root / str(host) / "cgroup.procs"

    def pids(self) -> list[int]:
        """Return the processes that are in any of the groups."""
        return [int(pid) for procs in self.root.glob("*/cgroup.procs") for pid in procs.read_text().split()]

    def remove(self, limit_s: float = 5.0) -> None:
        """Remove the groups; their processes must have been ended. Groups that are not there are no error."""
        end_s = time.monotonic() + limit_s
        groups = [g for g in self.root.iterdir() if g.is_dir()] if self.root.is_dir() else []
        for group in [*groups, self.root]:
            while group.is_dir():
                try:
                    group.rmdir()
                except OSError as error:  # a process that was killed is still on its way out
                    if time.monotonic() > end_s:
                        raise OmnizenError(f"control group {group} cannot be removed: {error}") from error
                    time.sleep(0.01)
