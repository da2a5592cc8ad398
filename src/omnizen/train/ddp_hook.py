"""One line for those who stay on DistributedDataParallel: our reducers as its communication hook."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from omnizen.comm.torch_pg import TorchComm, from_default
from omnizen.comm.turns import Running
from omnizen.errors import UserError
from omnizen.protocols import Comm, Reducer
from omnizen.spans import span
from omnizen.train.checks import check_seconds
from omnizen.train.ddp_short import ShortGradients
from omnizen.train.router import make_reducer, shortens
from omnizen.train.rows import like_param, real, rows_of, sparse_grad, sum_dtype
from omnizen.train.units import dense_value, sparse_value
from omnizen.train.wire import Wire
from omnizen.types import Dense, State, Step


@dataclass(slots=True)
class HookState:
    """What the hook keeps: a group of its own, and the thread that uses it.

    Buckets are reduced one after another in the order in which DDP hands them over (the same on all ranks), never
    from a completion callback. Nothing is kept by bucket number, which DDP changes after the first step.
    """

    comm: Comm
    rows: Reducer
    dense: Reducer
    wire: Wire
    short: ShortGradients | None = None
    calls: int = 0

    def close(self) -> None:
        """End the thread and let go of the group."""
        self.wire.close()
        self.comm.close()


def ddp_hook(
    scheme: str = "zen", process_group: Any = None, *, timeout_s: float = 60.0, values: str = "float32"
) -> tuple[HookState, Callable[[HookState, dist.GradBucket], torch.futures.Future[Tensor]]]:
    """Return what ``ddp.register_comm_hook`` takes: sparse gradients by a scheme, dense ones by all-reduce.

    A scheme that loses something and takes dense gradients ("topk") is used for parameters of 1,000 elements and
    more, each with its own memory; sparse gradients then go by agsparse. Checkpoints of such a job do not hold that
    memory, and a detached scheme is not detached here: use ``run.prepare`` for both.
    Called by all ranks together: it makes a process group of its own.

    Args:
        scheme: "zen", any scheme of the catalogue, or one with settings, ``"topk(density=0.001)"``.
        process_group: ranks of the DDP module; all if left out.
        timeout_s: limit of each wait for another rank.
        values: dtype of sparse values on the wire; sums are always float32.

    Raises:
        UserError: an unknown scheme (names the nearest one), a group that is none, a time limit of 0 or less.

    Example:
        >>> ddp.register_comm_hook(*oz.ddp_hook("zen"))  # doctest: +SKIP
    """
    check_seconds(timeout_s)
    if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
        raise UserError(f"process_group: a torch.distributed group, or None for all ranks; got {process_group!r}")
    rows, dense = make_reducer(scheme, values), make_reducer("dense", values)
    short = ShortGradients(rows) if shortens(rows) else None
    if short is not None:
        rows = make_reducer("agsparse", values)
    comm = own_group(process_group, timeout_s)
    return HookState(comm, rows, dense, Wire(f"omnizen-ddp-{comm.rank}"), short), hook


def own_group(process_group: Any, timeout_s: float) -> Comm:
    """Make a comm over the ranks of a group, beside it, so that DDP's own messages and ours cannot meet."""
    if process_group is None:
        return from_default(timeout_s, name="ddp hook")
    ranks = dist.get_process_group_ranks(process_group)
    group = dist.new_group(ranks, timeout=timedelta(seconds=timeout_s), use_local_synchronization=True)
    nccl = dist.get_backend(process_group) == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    release = dist.destroy_process_group
    return TorchComm(group, device=device, timeout_s=timeout_s, name="ddp hook", members=ranks, release=release)


def hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Hand one bucket to the wire thread; the future holds its average.

    Raises:
        OmnizenError: an earlier bucket failed (the same error again), or the state was closed.
    """
    if state.wire.failed is not None:
        raise state.wire.failed
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    step = Step(state.calls)
    if bucket.is_last():
        state.calls += 1
    grad = bucket.buffer()
    short = state.short if not grad.is_sparse else None
    params = bucket.parameters() if short is not None else []

    def average() -> Tensor:
        state.comm.step = step.n
        with torch.no_grad():
            if short is not None:
                return short.average(grad, params, state.comm, step)
            return reduce(state, grad, step)

    state.wire.submit(average, partial(_fulfil, future))
    return future


def _fulfil(future: torch.futures.Future[Tensor], job: Running[Tensor]) -> None:
    """Hand a job's end on; one that was never begun, because an earlier one failed, ends too."""
    try:
        future.set_result(job.wait())
    except Exception as error:
        future.set_exception(error)  # type: ignore[arg-type]  # the stub names the value type


def reduce(state: HookState, grad: Tensor, step: Step) -> Tensor:
    """Average one bucket over ranks, in its own layout and dtype."""
    if grad.is_sparse and not grad.is_complex() and state.rows.name != "dense":
        with span("select", "ddp bucket"):
            rows = rows_of(grad)
        done = state.rows.start(rows, State(), state.comm, step).wait()
        return sparse_grad(sparse_value(done, grad), grad)
    whole = grad.to_dense() if grad.is_sparse else grad
    flat = real(whole).reshape(-1).to(sum_dtype(grad.dtype))
    done = state.dense.start(Dense(flat), State(), state.comm, step).wait()
    mean = like_param(dense_value(done).to(grad.device).view(real(whole).shape), whole)
    return sparse_grad(rows_of(mean), grad) if grad.is_sparse else mean
