"""Numbers that users give benchmarks, looked at before hosts are started."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from omnizen.errors import UserError, nearest


def check_positive(**numbers: float | None) -> None:
    """Refuse what is not a finite number above 0; None is not given.

    Example:
        >>> check_positive(seconds=3.0, target=None)
    """
    for name, value in numbers.items():
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{name} must be a number above 0, got {value:g}")


def check_counts(**numbers: int | None) -> None:
    """Refuse what is less than 1; None is not given."""
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise UserError(f"{name} must be at least 1, got {value}")


def check_hosts(hosts: int, cpu: Sequence[float]) -> None:
    """Refuse fewer than 2 hosts, and speeds of which there is not one for each host (none at all is well)."""
    if hosts < 2 or (cpu and len(cpu) != hosts):
        raise UserError(f"at least 2 hosts, and a speed for each: got {hosts} and {len(cpu)} speeds")


def check_names(what: str, given: Iterable[str], allowed: Collection[str]) -> None:
    """Refuse a name that does not exist, with the nearest one that does."""
    for name in given:
        if name not in allowed:
            raise UserError(f"{what}: {nearest(name, allowed)}")
