"""Makers of TorchComm: over the job's default group, and over gloo between threads of one process for tests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from omnizen.comm.threads import launch
from omnizen.comm.torch_comm import TorchComm
from omnizen.comm.wire import Group
from omnizen.errors import UserError

T = TypeVar("T")


def from_default(
    timeout_s: float = 60.0, device: torch.device | str | None = None, name: str = "world"
) -> TorchComm:
    """Make a comm over all ranks of the initialised default group, with a group of its own.

    Called by every rank. Its sub-groups are made by their members only.

    Args:
        timeout_s: limit of each wait.
        device: where results are put; the current CUDA device for an nccl default group, else the CPU.
        name: what errors call it.

    Raises:
        UserError: if ``torch.distributed.init_process_group`` has not been called.
    """
    if not dist.is_initialized():
        raise UserError(
            "torch.distributed has no default group yet: call init_process_group first, or start by torchrun"
        )
    if device is None:
        nccl = dist.get_backend() == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    limit = timedelta(seconds=timeout_s)
    world = dist.new_group(timeout=limit, group_desc=name)
    gloo: Any = dist.ProcessGroupGloo  # torch's type stubs lack its constructor

    def make_group(members: list[int], name: str) -> Group:
        if world._get_backend(torch.device(device)).name() == "nccl":  # not measured on a GPU
            return dist.new_group(members, timeout=limit, use_local_synchronization=True, group_desc=name)
        # Not new_group: it names groups by their ranks, so the second group of the same ranks finds the
        # addresses of the first in the store, and connects to nobody.
        store = dist.PrefixStore(name, world.get_group_store())
        return gloo(store, members.index(dist.get_rank()), len(members), limit)

    def release(group: Group) -> None:
        if isinstance(group, dist.ProcessGroup) and dist.is_initialized():
            dist.destroy_process_group(group)

    return TorchComm(world, device=device, timeout_s=timeout_s, name=name, make_group=make_group, release=release)


def thread_gloo_ranks(
    size: int, body: Callable[[Any], T], *, timeout_s: float = 20.0, wrap: Callable[[Any], Any] | None = None
) -> list[T]:
    """Run ``body(comm)`` on ``size`` threads that are connected by gloo over loopback; results in rank order.

    Like ``threads.run_ranks``, with a ``TorchComm`` for each rank; 4 ranks start in about 60 ms. A rank that ends
    closes its connections, so that those who wait for it are told.

    Example:
        >>> thread_gloo_ranks(2, lambda comm: int(comm.all_reduce(torch.tensor(comm.rank)).wait()))
        [1, 1]
    """
    store = dist.HashStore()

    gloo: Any = dist.ProcessGroupGloo  # torch's type stubs lack the options

    def group(rank: int, size: int, name: str) -> Group:
        options = gloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        return gloo(dist.PrefixStore(name, store), rank, size, options)

    def work(rank: int) -> T:
        def make_group(members: list[int], name: str) -> Group:
            return group(members.index(rank), len(members), name)

        comm = TorchComm(group(rank, size, "world"), timeout_s=timeout_s, make_group=make_group)
        try:
            return body(wrap(comm) if wrap else comm)
        finally:
            comm.close()

    return launch(size, work, timeout_s=timeout_s)


__all__ = ["TorchComm", "from_default", "thread_gloo_ranks"]
