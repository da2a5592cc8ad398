"""How each benchmarked method wraps the same model and optimizer. A method is one function and one row."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from omnizen.bench.job import Job, Network
from omnizen.errors import UserError, nearest

if TYPE_CHECKING:
    from omnizen.bench.cases.case import Batch
    from omnizen.strategies.strategy import Strategy
    from omnizen.train.run import Run


@dataclass(frozen=True)
class Plain:
    """What every method is given.

    Args:
        batches: this rank's, from step 0 on, without end.
        reads: names the rows that a batch looks up.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterator[Batch]
    job: Job
    network: Network
    reads: Callable[[Batch], dict[str, Tensor]]


@dataclass
class Wrapped:
    """A model and an optimizer as a method wants them used.

    Args:
        batches: what the method made of the batches; None where it left them as they were.
        begin: called before each forward (torchft's quorum).
        settled: True once warm-up may end (Omnizen: its plan is in force).
        counted: payload bytes sent and received so far, where interface counters cannot tell.
        log: told the loss of each step.
        close: frees what the method holds.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterable[Batch] | None = None
    begin: Callable[[], None] = lambda: None
    settled: Callable[[], bool] = lambda: True
    steps_after_settling: int = 0
    counted: Callable[[], tuple[int, int]] | None = None
    log: Callable[[float], None] = lambda _: None
    close: Callable[[], None] = lambda: None
    run: Run | None = None
    keep: list[Any] = field(default_factory=list)


Wrap = Callable[[Plain], Wrapped]
ONE_BUCKET_MB = 4096


def _ddp(plain: Plain) -> Wrapped:
    wrapped = DistributedDataParallel(plain.model)
    if not plain.network.paced:
        return Wrapped(wrapped, plain.optimizer)
    from omnizen.bench.counters import CountingLink
    from omnizen.comm.ddp_paced import PacedAllreduce, paced_allreduce_hook

    assert plain.network.rate_bytes_per_s is not None
    link = CountingLink(plain.network.rate_bytes_per_s)
    assert dist.group.WORLD is not None
    pacing = PacedAllreduce(dist.group.WORLD, link)
    wrapped.register_comm_hook(pacing, paced_allreduce_hook)
    return Wrapped(wrapped, plain.optimizer, counted=link.both_ways, close=pacing.close)


def _fp16(plain: Plain) -> Wrapped:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    _only_real_links(plain)
    wrapped = DistributedDataParallel(plain.model)
    wrapped.register_comm_hook(None, fp16_compress_hook)
    return Wrapped(wrapped, plain.optimizer)


def _powersgd(plain: Plain) -> Wrapped:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

    _only_real_links(plain)
    # The hook waits for an all-reduce inside the callback of another. With two buckets every run here hung at its
    # seventh step (torch 2.13, 4 workers), presumably as both of gloo's threads waited so; one bucket does not.
    wrapped = DistributedDataParallel(plain.model, bucket_cap_mb=ONE_BUCKET_MB)
    state = powersgd.PowerSGDState(process_group=None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powersgd.powerSGD_hook)
    return Wrapped(wrapped, plain.optimizer)


def _torchft(plain: Plain) -> Wrapped:
    _only_real_links(plain)
    try:
        import torchft
        from torchft.coordination import LighthouseServer
    except ImportError as error:
        raise UserError(f"torchft cannot be imported ({error}); pip install 'omnizen[bench]'") from None
    rank, size = dist.get_rank(), dist.get_world_size()
    host = own_address()
    limit = timedelta(seconds=plain.job.limit_s)
    store = dist.distributed_c10d._get_default_store()
    lighthouse = None
    if rank == 0:
        lighthouse = LighthouseServer(bind="[::]:0", min_replicas=size, join_timeout_ms=10_000)
        port = lighthouse.address().rsplit(":", 1)[1]
        store.set("torchft/lighthouse", f"http://{host}:{port}")
    own_store = dist.TCPStore(host, 0, 1, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=limit),
        load_state_dict=plain.model.load_state_dict,
        state_dict=plain.model.state_dict,
        min_replica_size=size,
        timeout=limit, quorum_timeout=limit, connect_timeout=limit,
        rank=0, world_size=1, store_addr=host, store_port=own_store.port,
        lighthouse_addr=store.get("torchft/lighthouse").decode(),
        replica_id=f"bench_{rank}", hostname=host, init_sync=False,
    )  # fmt: skip
    wrapped = torchft.DistributedDataParallel(manager, plain.model)

    def close() -> None:
        # the lighthouse must outlive every manager
        dist.barrier()
        manager.shutdown()
        dist.barrier()
        if lighthouse is not None:
            lighthouse.shutdown()

    return Wrapped(
        wrapped,
        _Committing(manager, plain.optimizer),
        begin=manager.start_quorum,
        close=close,
        keep=[own_store, lighthouse],
    )


class _Committing(torch.optim.Optimizer):
    """Steps only when all replicas agree, as torchft's own wrapper does, but starts no quorum in ``zero_grad``.

    The benchmark's loop calls ``zero_grad`` after the step; torchft's wrapper wants it before the forward.
    """

    def __init__(self, manager: Any, inner: torch.optim.Optimizer) -> None:
        self.manager, self.inner = manager, inner

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if not self.manager.should_commit():
            raise RuntimeError("torchft did not commit the step: a replica was lost or an all-reduce failed")
        self.inner.step(closure)


LAZY_BF16 = {"*table.weight": "lazy", "*": "feedback(dense(values='bfloat16'))"}


def _in_groups(plain: Plain, count: int | None = None) -> Wrapped:
    """Train in so many compute groups; one for each rank if left out."""
    from omnizen.strategies import groups

    return _omnizen(plain, groups(int(os.environ["WORLD_SIZE"]) if count is None else count))


def _omnizen(plain: Plain, plan: str | dict[str, str] | Strategy | None = None) -> Wrapped:
    import omnizen as oz

    job = plain.job
    plan = plan or job.plan

    run = oz.init(run_dir=job.run_dir, timeout_s=job.limit_s, seed=job.seed)
    wrapped, ready, dealt = run.prepare(plain.model, plain.optimizer, plain.batches, plan=plan, reads=plain.reads)
    planned = plan == "auto"
    return Wrapped(
        wrapped,
        ready,
        dealt,
        settled=lambda: run.plan is not None or not planned,
        steps_after_settling=2,
        log=lambda loss: run.log(loss=loss),
        close=run.close,
        run=run,
    )


@dataclass(frozen=True)
class Method:
    """A row: how to wrap, and whether embeddings are made with ``sparse=True``."""

    wrap: Wrap
    sparse: bool = False


TABLE: dict[str, Method] = {
    "ddp": Method(_ddp),
    "ddp-sparse": Method(_ddp, sparse=True),
    "ddp-fp16": Method(_fp16),
    "ddp-powersgd": Method(_powersgd),
    "torchft": Method(_torchft),
    "omnizen": Method(_omnizen, sparse=True),
    "omnizen-lazy": Method(partial(_omnizen, plan="lazy"), sparse=True),
    "omnizen-lazy-bf16": Method(partial(_omnizen, plan=LAZY_BF16), sparse=True),
    "omnizen-groups-2": Method(partial(_in_groups, count=2), sparse=True),
    "omnizen-async": Method(_in_groups, sparse=True),
    "omnizen-powersgd": Method(partial(_omnizen, plan="powersgd"), sparse=True),
}


def method(name: str) -> Method:
    """Return the row of a method.

    Raises:
        UserError: there is no such method.
    """
    if name not in TABLE:
        raise UserError(f"unknown method: {nearest(name, TABLE)}")
    return TABLE[name]


def _only_real_links(plain: Plain) -> None:
    if plain.network.paced:
        raise UserError(
            f"{plain.job.method} sends by itself and cannot be paced in software; it needs the lab's links"
        )


def own_address() -> str:
    """Return the address by which the other workers reach this one."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        return str(probe.getsockname()[0])
