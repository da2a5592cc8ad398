"""What each process of test_lazy_killed runs: lazily pulled tables, and rank 1 kills itself in a given phase."""

import os
import signal
import sys
import time

import torch
from torch import nn

import omnizen as oz
from omnizen.errors import PeerLost

ROWS, STEPS, KILLED_AT, LIMIT_S = 500, 6, 3, 8.0


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 16, sparse=True)
        self.head = nn.Linear(16, 1)

    def forward(self, ids):
        return self.head(self.table(ids)).square().mean()


def main(phase: str, named: bool) -> str:
    run = oz.init(timeout_s=LIMIT_S)
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rng = torch.Generator().manual_seed(run.rank)
    batches = [torch.randint(ROWS, (40,), generator=rng) for _ in range(STEPS)]
    reads = (lambda ids: {"table.weight": ids}) if named else None
    _, _, loader = run.prepare(model, optimizer, batches, plan="lazy", reads=reads)

    def at(now: str, step: int) -> None:
        if run.rank == 1 and (now, step) == (phase, KILLED_AT):
            os.kill(os.getpid(), signal.SIGKILL)

    last_s = time.monotonic()
    try:
        for step, ids in enumerate(loader):
            at("batch", step)
            loss = model(ids)
            at("forward", step)
            loss.backward()
            at("backward", step)
            optimizer.step()
            optimizer.zero_grad()
            at("stepped", step)
            last_s = time.monotonic()
        run.close()
    except PeerLost as error:
        took_s = time.monotonic() - last_s
        return f"{error} | in time: {took_s < 2 * LIMIT_S}"
    return "nothing noticed"


if __name__ == "__main__":
    print("said: ", main(sys.argv[1], sys.argv[2] == "named"), flush=True)
    os._exit(0)  # one rank is gone: nothing can be taken down in order
