"""A global batch divided among workers: whole samples, at least one each, the sum exact."""

from __future__ import annotations

import math
from collections.abc import Sequence

from omnizen.errors import UserError


def apportion(
    total: int, shares: Sequence[float], *, least: int = 1, most: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return whole parts of ``total`` in proportion to some shares, by largest remainder.

    Args:
        total: samples to divide.
        shares: one number above 0 a worker; only their proportion counts.
        least: samples that each worker gets at least.
        most: samples that each worker gets at most; what is too much for one goes to the others.

    Raises:
        UserError: a share that is not above 0, or bounds that the sum cannot keep.

    Example:
        >>> apportion(128, [1, 1, 1, 1 / 3]), apportion(7, [1, 1]), apportion(4, [100, 1, 1])
        ((39, 38, 38, 13), (4, 3), (2, 1, 1))
    """
    for worker, share in enumerate(shares):
        if not 0 < share < math.inf:
            raise UserError(f"each share must be a number above 0, worker {worker}'s is {share!r}")
    bounds = most if most is not None else (total,) * len(shares)
    return whole(level(total, shares, (0.0,) * len(shares), least, bounds), total)


def level(
    total: float, speeds: Sequence[float], fixed: Sequence[float], least: int, most: Sequence[int]
) -> list[float]:
    """Return the parts ``speed T - fixed``, within bounds, for the T at which they sum to ``total``.

    That is what lets workers end together which take ``(fixed + part) / speed`` seconds each.

    Args:
        speeds: samples a second, each above 0.
        fixed: what a worker's step costs beside its samples, in samples.

    Raises:
        UserError: bounds that the sum cannot keep.
    """
    if not least * len(speeds) <= total <= sum(max(least, bound) for bound in most):
        raise UserError(
            f"a global batch of {total:g} samples cannot be shared by {len(speeds)} workers: each takes at least "
            f"{least}, together they take at most {sum(most)}"
        )
    parts: dict[int, float] = {}
    free = set(range(len(speeds)))
    while free:
        together_s = (total - sum(parts.values()) + sum(fixed[k] for k in free)) / sum(speeds[k] for k in free)
        wanted = {k: speeds[k] * together_s - fixed[k] for k in free}
        bound = {k: float(min(max(least, most[k]), max(least, wanted[k]))) for k in free}
        lacking = sum(bound[k] - wanted[k] for k in free)
        settled = {k for k in free if (bound[k] - wanted[k]) * lacking > 0} if lacking else free
        parts |= {k: bound[k] for k in settled}
        free -= settled
    return [parts[k] for k in range(len(speeds))]


def whole(parts: Sequence[float], total: int) -> tuple[int, ...]:
    """Return whole parts that sum to ``total``: rounded down, the rest to the largest remainders."""
    down = [math.floor(part) for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda k: (down[k] - parts[k], k))
    up = set(by_remainder[: total - sum(down)])
    return tuple(part + (k in up) for k, part in enumerate(down))
