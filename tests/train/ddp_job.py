"""DistributedDataParallel with our hook, again and again: ``python tests/train/ddp_job.py OUT``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import omnizen as oz

REPEATS = 10


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])


def table() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.EmbeddingBag(300, 8, sparse=True), nn.Linear(8, 4)).double()


def batches(name: str, rank: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(10 + rank)
    if name == "layers":
        return [torch.randn(2, 512, generator=made) for _ in range(2)]
    return [torch.randint(300, (6, 5), generator=made) for _ in range(2)]


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


if __name__ == "__main__":
    out = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for name, build in (("layers", layers), ("table", table)):
        for repeat in range(REPEATS):
            model = build()
            ddp = DistributedDataParallel(model)
            group = dist.new_group() if repeat == 0 else None
            state, hook = oz.ddp_hook("zen", group, timeout_s=20)
            ddp.register_comm_hook(state, hook)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for batch in batches(name, rank):
                optimizer.zero_grad()
                loss(ddp, batch).backward()
                optimizer.step()
            dist.barrier()
            state.close()
        torch.save(model.state_dict(), out / f"{name}-{rank}.pt")
    dist.destroy_process_group()
