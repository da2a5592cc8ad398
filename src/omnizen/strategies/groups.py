"""Compute groups: ranks of a group step together, groups step whenever they are ready."""

from __future__ import annotations

from collections.abc import Sequence

from omnizen.errors import UserError
from omnizen.strategies.strategy import Strategy


def groups(into: int | Sequence[Sequence[int]], reducer: str = "auto") -> Strategy:
    """Train in groups that do not wait for each other; servers on the ranks hold the model and its momentum.

    A step costs a group nothing but its own time, so a slow machine in a group of its own delays nobody. Gradients
    are then some versions old (``run.staleness()``), which acts like momentum: more groups want less of it, and
    sometimes less than 0 (``run.set_hyper``). One group is plain synchronous training, as many as ranks fully
    asynchronous.

    Args:
        into: the number of groups, of about as many consecutive ranks each; or the ranks of each.
        reducer: scheme of sparse tables inside a group.

    Raises:
        UserError: groups that share a rank, or have none.

    Example:
        >>> groups(2).groups, groups([[0, 1], [2], [3]]).groups
        (2, ((0, 1), (2,), (3,)))

    Reference: Hadjis et al., "Omnivore: An Optimizer for Multi-device Deep Learning on CPUs and GPUs", 2016.
    """
    if isinstance(into, int):
        return Strategy(groups=into, reducer=reducer)
    return Strategy(groups=tuple(tuple(group) for group in into), reducer=reducer)


def ranks_of(into: int | Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Return the ranks of each group in a world of ``size``.

    Raises:
        UserError: some rank is in no group, or there are more groups than ranks.

    Example:
        >>> ranks_of(2, 5)
        [[0, 1, 2], [3, 4]]
    """
    if not isinstance(into, int):
        if sorted(rank for group in into for rank in group) != list(range(size)):
            raise UserError(
                f"groups: each of the ranks 0..{size - 1} is in one group; got {[list(group) for group in into]}"
            )
        return [sorted(group) for group in into]
    if into > size:
        raise UserError(f"groups: {into} groups need as many ranks, and there are {size}")
    small, bigger = divmod(size, into)
    ends = [small * (g + 1) + min(g + 1, bigger) for g in range(into)]
    return [list(range(begin, end)) for begin, end in zip([0, *ends], ends, strict=False)]
