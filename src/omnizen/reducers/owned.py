"""Rows that go to owners, are averaged there and come back: the steps that schemes with owners share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from omnizen.codecs.cast import narrow
from omnizen.codecs.coo import index_dtype
from omnizen.kernels.merge import merge
from omnizen.kernels.partition import Divided
from omnizen.kernels.rows_at import rows_at
from omnizen.protocols import Codec, Comm, Later, Pending
from omnizen.reducers.contribution import finite
from omnizen.spans import span
from omnizen.types import Packed, Parts, Reduced, Sparse, State, Step


def push_pull(
    x: Sparse, divided: Divided, pull: Callable[[int], Codec], values: str, state: State, comm: Comm, step: Step
) -> Pending[Reduced]:
    """Push rows to their owners, average there and give all averages to all; the pull begins in the wait.

    Args:
        divided: the rows by owner.
        pull: codec of each owner's averages, ``Sparse`` to ``Packed``.
        values: wire format of the push.
    """
    with span("encode", step.name):
        parts, low = by_owner(x, divided, values)
    push = comm.all_to_all(parts)

    def finish() -> Reduced:
        received = push.wait()
        with span("decode", step.name):
            mean = averaged(received, x)
        with span("encode", step.name):
            codec = pull(comm.rank)
            packed = codec.encode(mean, step)
        assert isinstance(packed, Packed)
        pulled = comm.all_gather(list(packed.streams)).wait()
        with span("decode", step.name):
            arrived = [
                _rows(pull(each), Packed(tuple(streams), packed.meta, packed.codec))
                for each, streams in enumerate(pulled)
            ]
            # No row has two owners, so this sorts and never adds.
            rows, averages = merge([part.indices for part in arrived], [part.values for part in arrived])
            value = Sparse(rows, averages.to(x.values.dtype), x.num_rows)
            sent = None if low is None else less_rounding(x, low, mean, _rows(codec, packed), comm.size)
        return Reduced(value, sent, state)

    return Later(finish)


def by_owner(x: Sparse, divided: Divided, values: str) -> tuple[list[Parts], Tensor | None]:
    """Split rows among their owners.

    Args:
        divided: the rows by owner.
        values: wire format.

    Returns:
        ``[values, indices]`` for each owner, and all values as they travel if that is not as they are.
    """
    low = narrow(x.values.detach(), values)
    streams = (rows_at(low, divided.order), divided.rows.to(index_dtype(x.num_rows)))
    parts = [list(part) for part in zip(*(s.split(divided.counts.tolist()) for s in streams), strict=True)]
    return parts, low.to(x.values.dtype) if low.dtype != x.values.dtype else None


def averaged(received: Sequence[Parts], like: Sparse) -> Sparse:
    """Return an owner's averages of the ``[values, indices]`` that all ranks sent, in the type of ``like``."""
    rows, total = merge([indices for _, indices in received], [values for values, _ in received])
    return Sparse(rows, total.div_(len(received)).to(like.values.dtype), like.num_rows)


def less_rounding(x: Sparse, low: Tensor, mean: Sparse, arrived: Sparse, size: int) -> Sparse:
    """Return what a rank sent, less the rounding of the averages that it owns.

    Args:
        low: ``x.values`` as they travelled.
        mean: this owner's averages.
        arrived: the same rows as the others received them.
        size: ranks.
    """
    lost = finite(mean.values - arrived.values) * size
    rows, values = merge([x.indices, arrived.indices], [low, -lost])
    return Sparse(rows, values.to(x.values.dtype), x.num_rows)


def _rows(codec: Codec, packed: Packed) -> Sparse:
    decoded = codec.decode(packed)
    assert isinstance(decoded, Sparse)
    return decoded
