"""Norms of many tensors, all on every rank or each on one rank only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from omnizen.protocols import Comm


def norms(tensors: Sequence[Tensor], comm: Comm | None = None) -> Tensor:
    """Return the 2-norm of each tensor, ``[len(tensors)]`` float32, equal on all ranks.

    With a comm each norm is computed on one rank and the norms are gathered (a parallel tensor operator): saves
    ``1 - 1/n`` of the passes over memory, costs an all-gather of small messages. Tensors must be equal on all
    ranks.

    Reference: PTO in Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters",
    MLSys 2021.
    """
    device = tensors[0].device if tensors else torch.device("cpu")
    if comm is None or comm.size == 1 or not tensors:
        return _each(tensors, device)
    owners = share_out([t.numel() for t in tensors], comm.size)
    mine = _each([t for t, owner in zip(tensors, owners, strict=True) if owner == comm.rank], device)
    gathered = [iter(part.to(device)) for (part,) in comm.all_gather([mine.to(comm.device)]).wait()]
    return torch.stack([next(gathered[owner]) for owner in owners])


def share_out(sizes: Sequence[int], ranks: int) -> list[int]:
    """Return the owner of each size: the largest first, each to the rank that has least so far.

    Example:
        >>> share_out([5, 9, 4, 1], 2)
        [1, 0, 1, 0]
    """
    loads, owners = [0] * ranks, [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        owners[i] = min(range(ranks), key=lambda rank: (loads[rank], rank))
        loads[owners[i]] += sizes[i]
    return owners


def _each(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    if not tensors:
        return torch.empty(0, device=device)
    return torch.stack([torch.linalg.vector_norm(t.detach(), dtype=_wide(t)) for t in tensors]).float()


def _wide(t: Tensor) -> torch.dtype:
    return torch.float64 if t.dtype == torch.float64 else torch.float32
