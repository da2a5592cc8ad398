"""Link rates as people write them: ``100mbit`` for every host, or a file with rates host by host."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omnizen.errors import UserError, nearest

UNITS_BIT_PER_S = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
LEAST_BIT_PER_S, MOST_BIT_PER_S = 1e3, 100e9


def parse_rate(text: str) -> float:
    """Return the bits per second of a rate such as ``10mbit``, ``1gbit`` or ``25kbit``.

    Raises:
        UserError: no unit, an unknown unit, or a rate that no link here can have.

    Example:
        >>> parse_rate("2.5mbit")
        2500000.0
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z/]*)", str(text).strip().lower())
    if not found:
        raise UserError(f"rate {text!r} is not a number with a unit; write for example 100mbit")
    number, unit = found.groups()
    if not unit:
        raise UserError(
            f"rate {text!r} has no unit; write for example {number}mbit (units: {', '.join(UNITS_BIT_PER_S)})"
        )
    if unit not in UNITS_BIT_PER_S:
        raise UserError(f"unit of rate {text!r}: {nearest(unit, UNITS_BIT_PER_S)}")
    return check_rate(float(number) * UNITS_BIT_PER_S[unit])


def check_rate(bit_per_s: float) -> float:
    """Return the rate; raises ``UserError`` where a shaped link cannot have it."""
    if not LEAST_BIT_PER_S <= bit_per_s <= MOST_BIT_PER_S:
        raise UserError(
            f"a link of {bit_per_s:g} bit/s cannot be shaped; "
            f"rates lie between {show_rate(LEAST_BIT_PER_S)} and {show_rate(MOST_BIT_PER_S)} (after dilation)"
        )
    return bit_per_s


def show_rate(bit_per_s: float) -> str:
    """Return a rate for people.

    Example:
        >>> show_rate(25e6)
        '25 Mbit/s'
    """
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if bit_per_s >= size:
            return f"{bit_per_s / size:.4g} {prefix}bit/s"
    return f"{bit_per_s:.4g} bit/s"


@dataclass(frozen=True, slots=True)
class Link:
    """One host's link, in bits per second, before dilation.

    Args:
        up_bit_per_s: what the host can send.
        down_bit_per_s: what it can receive.
    """

    up_bit_per_s: float
    down_bit_per_s: float

    @classmethod
    def of(cls, up: str, down: str | None = None) -> Link:
        """Return a link from written rates; one rate means both ways."""
        return cls(parse_rate(up), parse_rate(down if down is not None else up))

    def slowed(self, factor: float) -> Link:
        """Return the link with its rates divided by a dilation factor."""
        return Link(check_rate(self.up_bit_per_s / factor), check_rate(self.down_bit_per_s / factor))


def load_rates(path: Path | str) -> dict[int, Link]:
    """Return the hosts' own links from a file: TOML when it ends in ``.toml``, else text.

    TOML has a table per host, ``[hosts.3]`` with ``rate``, or ``up`` and ``down``. Text has a line per host,
    ``HOST RATE`` or ``HOST UP DOWN``; ``#`` begins a comment. Hosts that are not named keep the common rate.

    Raises:
        UserError: the file cannot be read, or a line or key of it is not understood.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"rates file {path} cannot be read: {error}") from error
    try:
        links = _from_toml(text) if path.suffix == ".toml" else _from_text(text)
        if not links:
            raise UserError("it names no host; write for example '3 10mbit', or leave the file out")
        return links
    except UserError as error:
        raise UserError(f"rates file {path}: {error}") from error


def _from_toml(text: str) -> dict[int, Link]:
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(str(error)) from error
    for key, kind in (("devices", "facts"), ("tensors", "a plan")):
        if key in content:
            raise UserError(f"it holds {kind}; wanted here: a table for each host, such as [hosts.3]")
    _refuse_unknown(content, ("hosts",), "key")
    hosts = content.get("hosts", {})
    if not isinstance(hosts, dict):
        raise UserError("'hosts' must hold a table per host, such as [hosts.3]")
    links: dict[int, Link] = {}
    for name, table in hosts.items():
        host = _host(name)
        if host in links:
            raise UserError(f"host {host} is named twice")
        if not isinstance(table, dict):
            raise UserError(f"[hosts.{name}] must be a table with 'rate', or 'up' and 'down'")
        _refuse_unknown(table, ("rate", "up", "down"), f"key in [hosts.{name}]")
        if set(table) == {"rate"}:
            links[host] = Link.of(table["rate"])
        elif set(table) == {"up", "down"}:
            links[host] = Link.of(table["up"], table["down"])
        else:
            raise UserError(f"[hosts.{name}] needs either 'rate', or both 'up' and 'down'")
    return links


def _from_text(text: str) -> dict[int, Link]:
    links: dict[int, Link] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if len(words) not in (2, 3):
            raise UserError(f"line {number}: write HOST RATE or HOST UP DOWN, got {line.strip()!r}")
        try:
            host = _host(words[0])
            if host in links:
                raise UserError(f"host {host} is named twice")
            links[host] = Link.of(*words[1:])
        except UserError as error:
            raise UserError(f"line {number}: {error}") from error
    return links


def _host(name: str) -> int:
    if not (name.isascii() and name.isdecimal()):
        raise UserError(f"host {name!r} is not a number from 0")
    return int(name)


def _refuse_unknown(given: Mapping[str, object], allowed: tuple[str, ...], what: str) -> None:
    for key in given:
        if key not in allowed:
            raise UserError(f"unknown {what}: {nearest(key, allowed)}")
