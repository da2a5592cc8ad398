"""Several ranks on one machine, each on cores of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from omnizen.errors import UserError
from omnizen.plan.apportion import apportion


def pin_cores(shares: Sequence[float] | None = None) -> tuple[int, ...]:
    """Keep this process on its part of the cores that it may use, one torch thread a core; before ``init``.

    Under torchrun each rank takes the part of its ``LOCAL_RANK``: sets of cores of one machine are then so many
    devices of one process group, and ``balance`` divides batches among them. Nothing else ever pins a rank.

    Args:
        shares: one number above 0 for each local rank; all alike unless given. Each gets at least one core.

    Returns:
        The cores of this rank.

    Raises:
        UserError: more ranks on this machine than cores, or no affinity on this system.

    Example:
        >>> pin_cores()  # doctest: +SKIP
        (0, 1, 2, 3)
    """
    if not hasattr(os, "sched_setaffinity"):
        raise UserError("this system cannot keep a process on some cores; start the ranks without pin_cores()")
    rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cores = core_sets(sorted(os.sched_getaffinity(0)), shares or (1.0,) * ranks, ranks)[rank]
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
    return cores


def core_sets(cores: Sequence[int], shares: Sequence[float], ranks: int) -> list[tuple[int, ...]]:
    """Return runs of neighbouring cores, one for each rank.

    Example:
        >>> core_sets(range(8), [3, 1], 2)
        [(0, 1, 2, 3, 4, 5), (6, 7)]
    """
    if len(shares) != ranks:
        raise UserError(f"shares: one for each of {ranks} ranks on this machine, got {len(shares)}")
    if len(cores) < ranks:
        raise UserError(
            f"{ranks} ranks on this machine may use {len(cores)} cores; each needs one of its own: start fewer "
            "ranks, or do without pin_cores()"
        )
    counts = apportion(len(cores), shares)
    ends = [sum(counts[: rank + 1]) for rank in range(ranks)]
    return [tuple(cores[end - count : end]) for end, count in zip(ends, counts, strict=True)]
