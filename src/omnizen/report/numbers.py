"""How quantities are written in a report: three significant digits and a unit that fits."""

from __future__ import annotations

import math

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_BITS = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"))
MISSING, MINUS, TIMES = "\u2013", "\u2212", "\u00d7"


def significant(value: float, digits: int = 3) -> str:
    """Return a number with the given significant digits, whole numbers with thousands separators.

    Example:
        >>> significant(5.3792), significant(0.0712), significant(12345.6)
        ('5.38', '0.0712', '12,346')
    """
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    if round(abs(value), decimals) >= 10.0 ** (digits - decimals):
        decimals -= 1
    return f"{value:,.{max(decimals, 0)}f}"


def seconds(value: float | None) -> str:
    """Return a duration.

    Example:
        >>> seconds(5.3792), seconds(0.0712), seconds(0.00009), seconds(192.3), seconds(None)
        ('5.38 s', '71.2 ms', '90.0 µs', '3 min 12 s', '–')
    """
    if value is None:
        return MISSING
    size = abs(value)
    if not math.isfinite(value) or value == 0:
        return f"{significant(value)} s"
    if size >= 119.5:
        minutes, rest = divmod(round(size), 60)
        return f"{MINUS if value < 0 else ''}{minutes:,} min {rest} s"
    if size >= 0.1:
        return f"{significant(value)} s"
    return f"{significant(value * 1e3)} ms" if size >= 1e-4 else f"{significant(value * 1e6)} µs"


def axis_unit(longest_s: float) -> tuple[float, str]:
    """Return the factor from seconds, and the name, of the unit that suits an axis.

    Example:
        >>> axis_unit(1.3), axis_unit(0.031)
        ((1.0, 'seconds'), (1000.0, 'milliseconds'))
    """
    return (1.0, "seconds") if longest_s >= 0.1 else (1e3, "milliseconds")


def nbytes(value: float | None) -> str:
    """Return a number of bytes in decimal units.

    Example:
        >>> nbytes(5_380_000), nbytes(812), nbytes(0)
        ('5.38 MB', '812 B', '0 B')
    """
    if value is None:
        return MISSING
    for size, unit in _BYTES:
        if abs(value) >= size * 0.9995:
            return f"{significant(value / size)} {unit}"
    return f"{round(value)} B"


def bit_rate(bytes_per_s: float | None) -> str:
    """Return a link's rate in bits per second.

    Example:
        >>> bit_rate(12.5e6)
        '100 Mbit/s'
    """
    if bytes_per_s is None:
        return MISSING
    for size, unit in _BITS:
        if bytes_per_s * 8 >= size * 0.9995:
            return f"{significant(bytes_per_s * 8 / size)} {unit}"
    return f"{significant(bytes_per_s * 8)} bit/s"


def percent(fraction: float | None, *, signed: bool = False) -> str:
    """Return a fraction in per cent.

    Example:
        >>> percent(0.0221), percent(0.123, signed=True), percent(-0.5, signed=True)
        ('2.21 %', '+12.3 %', '−50.0 %')
    """
    if fraction is None:
        return MISSING
    sign = MINUS if fraction < 0 else "+" if signed and fraction > 0 else ""
    return f"{sign}{significant(abs(fraction) * 100)} %"


def difference(fraction: float | None) -> str:
    """Return a deviation in per cent, with its sign and one decimal where it is small.

    Example:
        >>> difference(0.2483), difference(-0.00205), difference(5.5)
        ('+24.8 %', '\u22120.2 %', '+550 %')
    """
    if fraction is None or abs(fraction) >= 1:
        return percent(fraction, signed=True)
    shown = round(fraction * 100, 1)
    sign = MINUS if shown < 0 else "+" if shown > 0 else ""
    return f"{sign}{abs(shown):.1f} %"


def factor(value: float) -> str:
    """Return a setting such as a dilation, without zeros that say nothing.

    Example:
        >>> factor(2.0), factor(2.6667), factor(8)
        ('2', '2.67', '8')
    """
    text = significant(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: float | None) -> str:
    """Return a whole number with separators, or in millions where it is large.

    Example:
        >>> count(1234), count(10_321_600)
        ('1,234', '10.3 million')
    """
    if value is None:
        return MISSING
    return f"{significant(value / 1e6)} million" if abs(value) >= 1e6 else f"{round(value):,}"


def plain(value: float | None) -> str:
    """Return a number without a unit, to four significant digits."""
    return MISSING if value is None else significant(value, 4)


def times(factor: float) -> str:
    """Return a factor for a sentence, e.g. ``7.6``.

    Example:
        >>> times(7.574), times(43.2), times(1.034)
        ('7.6', '43', '1.03')
    """
    return significant(factor, 2 if factor >= 2 else 3)
