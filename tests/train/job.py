"""A small job for real processes: ``python tests/train/job.py OUT PLAN``; each rank writes its weights."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import omnizen as oz


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.EmbeddingBag(40, 6, sparse=True), nn.Linear(6, 3)).double()


def data() -> TensorDataset:
    made = torch.Generator().manual_seed(7)
    return TensorDataset(torch.randint(40, (22, 4), generator=made), torch.randint(3, (22,), generator=made))


def train(run: oz.Run, model: nn.Module, batch: int, plan: str = "zen-coo", epochs: int = 2) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data(), batch_size=batch, shuffle=True)
    named = {"plan": plan, "reads": lambda batch: {"0.weight": batch[0]}}
    model, optimizer, loader = run.prepare(model, optimizer, loader, **named)
    for _ in range(epochs):
        for ids, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(ids), labels)
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
    run.flush()
    return model


if __name__ == "__main__":
    out = Path(sys.argv[1])
    run = oz.init(run_dir=out, timeout_s=20)
    torch.save(train(run, build(run.rank), batch=4, plan=sys.argv[2]).state_dict(), out / f"weights-{run.rank}.pt")
    run.close()
