"""Stock DistributedDataParallel over a link paced in software, so that it meets the same modelled link as ours."""

# No ``from __future__ import annotations`` here: DDP compares the hook's annotations with the classes themselves.
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from omnizen.comm.paced import PacedLink
from omnizen.comm.wrapper import ring_bytes

INDEX_BYTES = 8


class PacedAllreduce:
    """State of ``paced_allreduce_hook``: the group, the modelled link and the thread that holds results back.

    Args:
        process_group: group over which DDP averages.
        link: this rank's modelled link.
    """

    def __init__(self, process_group: dist.ProcessGroup, link: PacedLink) -> None:
        self.process_group, self.link = process_group, link
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="paced all-reduce")

    def close(self) -> None:
        """End the thread."""
        self.thread.shutdown()


def payload_bytes(bucket: Tensor, size: int) -> float:
    """Return what averaging a bucket puts on one rank's link each way.

    Dense: a ring. Sparse: torch gathers everybody's indices and values; the others are taken to have as many
    entries as this rank.

    Example:
        >>> payload_bytes(torch.zeros(100), 4)
        600.0
        >>> payload_bytes(torch.eye(3).to_sparse(), 4)
        180.0
    """
    if not bucket.is_sparse:
        return ring_bytes(bucket.numel() * bucket.element_size(), size)
    values = bucket._values()
    entries = values.numel() * values.element_size() + bucket._indices().numel() * INDEX_BYTES
    return float((size - 1) * entries)


def paced_allreduce_hook(state: PacedAllreduce, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket as DDP itself does; complete no sooner than its bytes would have crossed the link.

    Example:
        ``model.register_comm_hook(PacedAllreduce(dist.group.WORLD, PacedLink(12.5e6)), paced_allreduce_hook)``
    """
    tensor, group = bucket.buffer(), state.process_group
    issued_s = state.link.clock.monotonic()
    num_bytes = payload_bytes(tensor, group.size())
    future: Any = dist.all_reduce(tensor.div_(group.size()), group=group, async_op=True).get_future()
    held: Any = torch.futures.Future()

    def hold() -> None:
        try:
            value = future.wait()[0]
            state.link.sleep_until(state.link.cross(issued_s, num_bytes))
        except RuntimeError as error:  # DDP raises it where it waits for the bucket
            held.set_exception(error)
        else:
            held.set_result(value)

    state.thread.submit(hold)
    return held
