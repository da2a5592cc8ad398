"""Synthetic sparse gradients with a stated density and skew, equal on every machine for equal seeds."""

from __future__ import annotations

import numpy as np
import torch

from omnizen.bench.grid import Point
from omnizen.types import Sparse, hash_text

RUN_ELEMENTS = 2048
"""Elements of a run of touched rows in blocky patterns; runs are not aligned with anybody's blocks."""


def indices(point: Point, rank: int, seed: int) -> np.ndarray:
    """Return the rows that one worker touches, ascending.

    ``zipf`` draws without replacement with probability 1 / (i + 1) by the Gumbel trick, in rank order of frequency:
    row 0 is the most frequent, as in a vocabulary sorted by count. ``blocky`` draws runs, the last one cut short.
    """
    rng = np.random.default_rng(hash_text(f"{seed}/{rank}/{point.name}"))
    kept = max(1, round(point.density * point.rows))
    if point.skew == "uniform":
        return np.sort(rng.choice(point.rows, kept, replace=False)).astype(np.int64)
    if point.skew == "blocky":
        run = min(kept, max(1, RUN_ELEMENTS // point.width))
        runs = rng.permutation(-(-point.rows // run))[:, None] * run + np.arange(run)
        rows = runs[runs < point.rows][:kept] + run // 3
        return np.sort(rows % point.rows).astype(np.int64)
    keys = rng.gumbel(size=point.rows) - np.log1p(np.arange(point.rows))
    return np.sort(np.argpartition(-keys, kept - 1)[:kept]).astype(np.int64)


def contribution(point: Point, rank: int, seed: int) -> Sparse:
    """Return one worker's gradient, float32."""
    rows = indices(point, rank, seed)
    rng = np.random.default_rng(hash_text(f"values/{seed}/{rank}/{point.name}"))
    values = rng.standard_normal((len(rows), point.width), dtype=np.float32)
    return Sparse(torch.from_numpy(rows), torch.from_numpy(values), point.rows)
