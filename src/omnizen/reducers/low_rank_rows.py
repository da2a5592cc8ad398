"""The touched rows of a matrix as a product of thin ones: r values a row on the wire instead of the whole width."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from omnizen.codecs.cast import narrow
from omnizen.codecs.coo import index_bytes, index_dtype
from omnizen.kernels.merge import merge
from omnizen.protocols import Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.agsparse import AgSparse
from omnizen.reducers.low_rank import next_query, orthonormal
from omnizen.spans import span
from omnizen.types import Reduced, Sparse, Sparsity, State, Step, Traffic


def reduce_rows(x: Sparse, state: State, key: str, values: str, comm: Comm, step: Step) -> Pending[Reduced]:
    """Begin to average rows by one step of power iteration; ``state.extra[key]`` holds the query ``[width, rank]``.

    Ranks gather each other's rows of ``P`` with their indices, then each other's ``Q`` ``[width, rank]``. Rows that
    are too narrow to shrink (no query in the state) are gathered whole.

    What a row's average holds of ranks that did not touch the row counts as sent by those that did, in equal parts:
    the error of a row stays with ranks that will touch it again, and error feedback can make it good.
    """
    if key not in state.extra:
        return AgSparse(values).start(x, state, comm, step)
    before = state.extra[key]
    with span("encode", step.name):
        rows = x.values.detach().to(before.dtype)
        own = narrow(rows @ before, values)
        pushed = comm.all_gather([own, x.indices.to(index_dtype(x.num_rows))])

    def finish() -> Reduced:
        gathered = pushed.wait()
        with span("encode", step.name):
            indices = [there.long() for _, there in gathered]
            union, total = merge(indices, [part for part, _ in gathered])
            basis = orthonormal(total.to(before.dtype) / comm.size)
            places = [torch.searchsorted(union, there) for there in indices]
            mine = narrow(rows.T @ basis[places[comm.rank]], values)
        if not union.numel():
            return Reduced(x, None, state)
        everyone = [part.to(before.dtype) for (part,) in comm.all_gather([mine]).wait()]
        with span("decode", step.name):
            mean = sum(everyone[1:], everyone[0].clone()) / comm.size
            value = basis @ mean.T
            sent = _sent(basis, value * comm.size, everyone, places, comm.rank)
            kept = State(extra={key: next_query(mean, before, step)})
        dtype = x.values.dtype
        return Reduced(
            Sparse(union, value.to(dtype), x.num_rows), Sparse(x.indices, sent.to(dtype), x.num_rows), kept
        )

    return Later(finish)


def _sent(basis: Tensor, total: Tensor, everyone: Sequence[Tensor], places: Sequence[Tensor], rank: int) -> Tensor:
    """Return what counts as sent at a rank's rows: its own product, and its part of what nobody else answers for.

    Args:
        basis: ``[union, rank]``.
        total: ``[union, width]``, the sum over ranks of products.
        everyone: each rank's ``[width, rank]``.
        places: where each rank's rows are in the union.
    """
    touched = basis.new_zeros(basis.shape[0])
    here = places[rank]
    orphaned = total[here]
    own = torch.zeros_like(orphaned)
    for other, (theirs, at) in enumerate(zip(everyone, places, strict=True)):
        touched[at] += 1
        shared = torch.zeros_like(touched, dtype=torch.bool)
        shared[at] = True
        shared = shared[here]
        product = basis[here[shared]] @ theirs.T
        orphaned[shared] -= product
        if other == rank:
            own = product
    return own + orphaned / touched[here, None]


def rows_traffic(pattern: Sparsity, size: int, rank: int, values: str) -> Traffic:
    """Predict the bytes and rounds at each rank."""
    if 2 * rank > pattern.width:
        return AgSparse(values).traffic(pattern, size)
    itemsize = max(4, pattern.itemsize) if values == "float32" else 2
    rows = (size - 1) * pattern.rows * (index_bytes(pattern.num_rows) + rank * itemsize)
    queries = (size - 1) * pattern.width * rank * itemsize
    return wire_cost.scheduled(rows, rows, 2, size) + wire_cost.scheduled(queries, queries, 1, size)
