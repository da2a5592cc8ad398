"""Per-shard step sizes beside a common one."""

from __future__ import annotations

import pytest
import torch

from omnizen.bench.shards import descend, run_shards, split
from omnizen.errors import UserError


def test_the_benchmark_reports_published_and_tuned_step_sizes() -> None:
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 5, generator=rng).double() * torch.linspace(0.2, 3, 40).double()[:, None]
    targets = (inputs[:, 0] > 0).long()
    shards = split(inputs, targets, 2, "norm")
    assert float(shards[0][0].norm(dim=1).max()) <= float(shards[1][0].norm(dim=1).min())
    rows = run_shards(shards, 2, case="test", steps=10, factors=(0.5, 1.0))
    assert len(rows) == 8
    values = {row.method: row.value for row in rows}
    for name in ("common", "per-shard"):
        assert values[f"{name}, tuned, L by power"] <= values[f"{name}, as published, L by power"]
    again = descend(shards, 2, rows[0].params["lr"], "dense", 10)
    assert again == pytest.approx(rows[0].value)
    with pytest.raises(UserError, match="did you mean 'norm'"):
        split(inputs, targets, 2, "nrm")
