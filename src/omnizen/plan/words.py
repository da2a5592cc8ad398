"""Quantities as people read them."""

from __future__ import annotations


def amount(nbytes: float) -> str:
    """Write a number of bytes.

    Example:
        >>> amount(1_400_000), amount(512)
        ('1.40 MB', '512 B')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes:.0f} B"


def duration(seconds: float) -> str:
    """Write a time.

    Example:
        >>> duration(1.5), duration(0.0123), duration(2e-5)
        ('1.50 s', '12.3 ms', '20 us')
    """
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def rate(bytes_per_s: float) -> str:
    """Write a bandwidth in bits, as links are sold.

    Example:
        >>> rate(12.5e6), rate(1.25e9)
        ('100 Mbit/s', '10.0 Gbit/s')
    """
    bits = 8 * bytes_per_s
    return f"{bits / 1e9:.1f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"
