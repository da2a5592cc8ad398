"""The whole tensor, averaged by a ring: the scheme that everything else is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.cast import checked_values, narrow, wire_dtype
from omnizen.kernels.merge import sum_dtype
from omnizen.protocols import Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.bases import WireFormat
from omnizen.reducers.contribution import as_tensor, checked, finite
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Reduced, Sparse, Sparsity, State, Step, Traffic


@dataclass(frozen=True, slots=True)
class DenseAverage(WireFormat):
    """Average all elements. Saves nothing; costs ``2 (n - 1) / n M`` bytes each way, whatever the pattern.

    A sparse contribution is filled up with zeros first and comes back dense. Values that travel in 16 bits are
    scattered, summed in float32 by an owner each and gathered: the bytes of a ring at half the width. The owner
    counts the rounding of its averages as not sent, so that ``sent`` and ``value`` still balance.

    Args:
        values: ``"float32"`` sends values as they are, ``"float16"`` and ``"bfloat16"`` in 16 bits.
    """

    values: str = "float32"
    name: ClassVar[str] = "dense"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Dense, Sparse)

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to average."""
        checked(x, self.takes, self.name)
        with span("encode", step.name):
            whole = as_tensor(x)
            flat = whole.detach().reshape(-1)
        if wire_dtype(flat.dtype, self.values).itemsize < 4:
            return self._scatter_gather(flat, whole.shape, state, comm, step)
        pending = comm.all_reduce(flat)
        return Later(lambda: Reduced(Dense((pending.wait() / comm.size).view(whole.shape)), None, state))

    def _scatter_gather(
        self, flat: Tensor, shape: torch.Size, state: State, comm: Comm, step: Step
    ) -> Pending[Reduced]:
        with span("encode", step.name):
            low = narrow(flat, self.values)
            push = comm.all_to_all([[chunk] for chunk in low.tensor_split(comm.size)])

        def finish() -> Reduced:
            received = push.wait()
            with span("decode", step.name):
                total = torch.zeros_like(received[0][0], dtype=sum_dtype(flat.dtype))
                for (chunk,) in received:
                    total += chunk
                mean = total.div_(comm.size)
                mean_low = narrow(mean.to(flat.dtype), self.values)
            pulled = comm.all_gather([mean_low]).wait()
            with span("decode", step.name):
                value = torch.cat([chunk for (chunk,) in pulled]).to(flat.dtype).view(shape)
                sent = None
                if low.dtype != flat.dtype:
                    kept = low.to(flat.dtype)
                    mine = kept.tensor_split(comm.size)[comm.rank]
                    mine -= finite(mean.to(flat.dtype) - mean_low) * comm.size
                    sent = Dense(kept.view(shape))
            return Reduced(Dense(value), sent, state)

        return Later(finish)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at each rank; the density does not matter."""
        elements = pattern.num_rows * pattern.width
        itemsize = pattern.itemsize if self.values == "float32" else min(2, pattern.itemsize)
        if itemsize >= 4:
            return wire_cost.all_reduce(elements * itemsize, size)
        largest = -(-elements // size)
        push, pull = (size - 1) * largest * itemsize, (elements - largest) * itemsize
        return wire_cost.scheduled(push, pull, 1, size) + wire_cost.scheduled(pull, push, 1, size)


def dense(values: str = "float32") -> DenseAverage:
    """Make the dense average; see ``DenseAverage``."""
    return DenseAverage(checked_values(values, "dense"))
