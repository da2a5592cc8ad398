"""A job of compute groups for real processes: ``python group_job.py OUT``; each rank writes what it reads."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import omnizen as oz

SAMPLES, EPOCHS, BATCH = 90, 3, 2
STEP_S = 0.02
"""A step takes so long that faults come in the middle of it all."""

if __name__ == "__main__":
    out = Path(sys.argv[1])
    run = oz.init(timeout_s=20)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 150), nn.BatchNorm1d(150), nn.Tanh(), nn.Linear(150, 300), nn.Linear(300, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.5)
    loader = DataLoader(TensorDataset(torch.arange(float(SAMPLES)).view(-1, 1)), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader, plan=oz.strategies.groups(run.size))
    with (out / f"read-{run.rank}.jsonl").open("w", buffering=1) as read:
        for epoch in range(EPOCHS):
            for (x,) in loader:
                optimizer.zero_grad()
                (model(x / SAMPLES) - 1).square().mean().backward()
                optimizer.step()
                read.write(json.dumps([epoch, x.view(-1).int().tolist()]) + "\n")
                time.sleep(STEP_S)
    run.flush()
    torch.save(model.state_dict(), out / f"weights-{run.rank}.pt")
    (out / f"notes-{run.rank}.json").write_text(json.dumps(run.driver.notes))
    run.close()
