"""What each process of test_groups_procs runs: three groups of one rank, of which one kills itself."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import omnizen as oz
from omnizen.strategies import groups

SAMPLES, EPOCHS, VICTIM = 60, 3, 2

if __name__ == "__main__":
    out = Path(sys.argv[1])
    run = oz.init(run_dir=out, timeout_s=20)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 700), nn.Tanh(), nn.Linear(700, 40))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.3)
    data = TensorDataset(torch.arange(SAMPLES), torch.randn(SAMPLES, 40))
    model, optimizer, loader = run.prepare(
        model, optimizer, DataLoader(data, batch_size=2, shuffle=True), plan=groups(3)
    )
    read: list[int] = []
    run.flush()  # all are there
    for _ in range(EPOCHS):
        for numbers, x in loader:
            if run.rank == VICTIM and run.step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            while run.rank != VICTIM and run.step == 2 and VICTIM not in run.driver.members.lost:
                time.sleep(0.01)  # until it has drawn and trained on as much as the test counts with
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            read += numbers.tolist()
    run.flush()
    torch.save({"weights": model.state_dict(), "read": read}, out / f"rank{run.rank}.pt")
    run.close()
