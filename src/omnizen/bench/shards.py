"""Per-shard step sizes beside a common one, each as published and each tuned: full-batch logistic regression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from omnizen.bench.limits import check_counts
from omnizen.bench.rows import Row, measured
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError, nearest
from omnizen.measure.smoothness import by_draws, by_power
from omnizen.protocols import Comm
from omnizen.strategies import Strategy, per_shard_steps
from omnizen.train.run import Run

if TYPE_CHECKING:
    from rich.table import Table

BENCH, METRIC = "shards", "final_loss"
SPLITS = ("class", "norm")
FACTORS = tuple(2.0**k for k in range(-2, 7))
"""Step sizes tried when tuning, as multiples of the published ones."""
TIMEOUT_S = 60.0

Shard = tuple[Tensor, Tensor]


def split(inputs: Tensor, targets: Tensor, shards: int, by: str) -> list[Shard]:
    """Sort samples by their class or by their norm and cut them into equal shards, so that these differ.

    Raises:
        UserError: an unknown order, or fewer samples than shards.
    """
    if by not in SPLITS:
        raise UserError(f"split: {nearest(by, SPLITS)}")
    check_counts(ranks=shards)
    if len(inputs) < shards:
        raise UserError(f"{len(inputs)} samples cannot be cut into {shards} shards")
    order = torch.argsort(targets if by == "class" else inputs.norm(dim=1), stable=True)
    size = len(inputs) // shards
    return [(inputs[rows], targets[rows]) for rows in order[: size * shards].split(size)]


def smoothness(shards: Sequence[Shard], how: str, classes: int, *, draws: int = 100) -> list[float]:
    """Return L of each shard: at the start by power iteration, or by random draws as published."""
    found = []
    for inputs, targets in shards:
        model = _model(inputs, classes)
        loss = partial(_loss, model, inputs, targets)
        params, rng = list(model.parameters()), torch.Generator().manual_seed(0)
        if how == "power":
            found.append(by_power(loss, params, iterations=30, generator=rng))
        else:
            found.append(by_draws(loss, params, draws=draws, spread=0.1, generator=rng))
    return found


def _model(inputs: Tensor, classes: int) -> nn.Module:
    model = nn.Linear(inputs.shape[1], classes, dtype=inputs.dtype)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def _loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(model(inputs), targets)


def descend(shards: Sequence[Shard], classes: int, lr: float, strategy: Strategy | str, steps: int) -> float:
    """Return the loss over all shards after so many steps of full gradients, one rank a shard."""

    def body(comm: Comm) -> float:
        inputs, targets = shards[comm.rank]
        model = _model(inputs, classes)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        control = comm.sub(range(comm.size), "control")
        assert control is not None
        with Run(comm, control, seed=0) as run:
            run.prepare(model, optimizer, plan=strategy)
            for _ in range(steps):
                optimizer.zero_grad()
                _loss(model, inputs, targets).backward()
                optimizer.step()
        with torch.no_grad():
            return fmean(float(_loss(model, x, y)) for x, y in shards)

    return run_ranks(len(shards), body, timeout_s=TIMEOUT_S)[0]


def run_shards(
    shards: Sequence[Shard], classes: int, *, case: str, steps: int, factors: Sequence[float] = FACTORS
) -> list[Row]:
    """Descend by a common step size and by per-shard ones, with step sizes as published and tuned.

    Published: ``1/mean(L)`` for the common one, the mean of ``1/L_i`` for the others, which is never smaller.
    Tuned: the best of ``factors`` times that; 1 is one of them. Per-shard weights end after three
    quarters of the steps.

    Returns:
        A row for each method and each way to find L.
    """
    rows = []
    for how in ("power", "draws"):
        found = smoothness(shards, how, classes)
        common, unlike = 1 / fmean(found), fmean(1 / each for each in found)
        weighted = per_shard_steps(found, until_step=max(1, steps * 3 // 4), reducer="dense")
        for name, lr, strategy in (("common", common, "dense"), ("per-shard", unlike, weighted)):
            losses = {f: descend(shards, classes, f * lr, strategy, steps) for f in factors}
            usable = {f: loss for f, loss in losses.items() if math.isfinite(loss)}
            best = min(usable, key=lambda f: usable[f]) if usable else 1.0
            for which, factor in (("as published", 1.0), ("tuned", best)):
                params = {
                    "smoothness": [round(each, 4) for each in found],
                    "by": how,
                    "lr": factor * lr,
                    "factor": factor,
                    "steps": steps,
                    "losses_by_factor": {f"{f:g}": usable.get(f) for f in factors},
                }
                rows.append(
                    measured(
                        [losses[factor]], bench=BENCH, case=case, method=f"{name}, {which}, L by {how}",
                        hosts=len(shards), rate_mbit=None, metric=METRIC, unit="nats", params=params,
                    )
                )  # fmt: skip
    return rows


def table_of(rows: Sequence[Row]) -> Table:
    """Lay methods out beside each other."""
    from omnizen.bench.tables import table

    return table(
        f"Loss after {rows[0].params['steps']} steps of full gradients, {rows[0].hosts} shards",
        {"method": "name", "step size": "number", "times the\npublished": "number", "loss": "number"},
        [[r.method, f"{r.params['lr']:.4g}", f"{r.params['factor']:g}", f"{r.value:.4f}"] for r in rows],
    )
