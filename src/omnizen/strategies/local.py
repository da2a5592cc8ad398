"""Local steps: each rank trains on its own for a while, then all average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from omnizen.strategies.strategy import Strategy


def local_sgd(
    every: int | Sequence[int] | Literal["speed"] = 8,
    *,
    share: Literal["params", "delta"] = "params",
    reducer: str = "auto",
    mean: Literal["ranks", "steps", "samples"] = "ranks",
    pool: float = 1.0,
    most: int = 32,
    accumulate: int = 1,
) -> Strategy:
    """Let ranks take steps of their own between two averages: fast ranks many, slow ones few.

    Saves all communication but one exchange a round, and nobody waits for a slow rank's whole share. Costs accuracy
    where ranks drift apart between two exchanges. Momentum and all else that the optimizers keep stay each rank's.

    Args:
        every: local steps of a round: one number for all ranks, one for each rank, or "speed": in proportion to
            the ranks' measured speeds, the fastest one taking ``most``; measured again in every round.
        share: "params" averages parameters; "delta" averages what a round changed, through ``reducer``, and adds it
            to the common starting point (with "sbc" these are the delayed updates of sparse binary compression).
        reducer: catalogue name or text for ``share="delta"``; "auto" is the plain average.
        mean: what a rank counts for in the average: "ranks" is the plain mean whatever a rank did (as published),
            "steps" and "samples" weigh by what it did in the round.
        pool: above 1, ranks with at most half of the fastest one's steps read samples of high loss, picked
            from ``pool`` times as many drawn ones; say losses by ``run.note_losses``. 1 is unbiased.
        most: local steps of the fastest rank where ``every="speed"``.
        accumulate: batches of a step, where the loop accumulates gradients over several.

    Raises:
        UserError: says which value is not allowed.

    Reference: Lim et al., "Biased Local SGD for Efficient Deep Learning on Heterogeneous Systems",
    arXiv:2508.08540; Sattler et al., "Sparse Binary Compression", IJCNN 2019.

    Example:
        >>> local_sgd([32, 1], pool=4.0).every
        (32, 1)
    """
    return Strategy(
        share=share,
        reducer=reducer,
        every=tuple(every) if isinstance(every, list | tuple) else every,  # type: ignore[arg-type]
        mean=mean,
        pool=pool,
        most=most,
        accumulate=accumulate,
    )
