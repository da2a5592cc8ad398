"""HiTopKComm: the largest elements of each group's sum travel between groups of ranks, all of it inside them."""

from __future__ import annotations

from collections.abc import Sequence

from omnizen.reducers.agsparse import agsparse
from omnizen.reducers.feedback import feedback
from omnizen.reducers.hierarchical import hierarchical
from omnizen.reducers.named import Named, named
from omnizen.reducers.selected import selected
from omnizen.selectors.top_k import top_k


def hitopkcomm(density: float = 0.01, groups: int | Sequence[Sequence[int]] = 2) -> Named:
    """Make HiTopKComm: sum inside groups, top-k with a residual on each share, all-gather across, gather inside.

    Across groups a rank moves ``(m - 1) density / g`` of the tensor's elements with their indices, for m groups of
    g ranks; inside, about the whole tensor once. The residual is that of a share, so all ranks of a group together
    hold one tensor's.

    Args:
        density: fraction of each share's elements that travel.
        groups: ranks of each group; a number means neighbouring ranks, so many in each.

    Reference: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters", MLSys
    2021; their MSTopK is the selector ``mstopk``, which a processor does not need.
    """
    across = feedback(selected(top_k(density), agsparse()))
    return named(hierarchical(across, groups), "hitopkcomm")
