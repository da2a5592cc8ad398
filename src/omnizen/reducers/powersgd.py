"""Matrices as products of two thin ones, which add up on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.cast import checked_values
from omnizen.errors import UserError
from omnizen.kernels.merge import sum_dtype
from omnizen.protocols import Comm, Later, Pending
from omnizen.reducers.contribution import checked
from omnizen.reducers.dense import DenseAverage
from omnizen.reducers.feedback import feedback
from omnizen.reducers.low_rank import next_query, orthonormal, query
from omnizen.reducers.low_rank_rows import reduce_rows, rows_traffic
from omnizen.reducers.named import Named, named
from omnizen.reducers.segments import slots
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Layout, Reduced, Slot, Sparse, Sparsity, State, Step, Traffic

QUERY = "query"


@dataclass(frozen=True, slots=True)
class PowerSgd:
    """Average each matrix M ``[n, m]`` as ``P Q^T`` of rank r, by one step of power iteration from the last Q.

    ``P = mean(M_i Q)`` and ``Q = mean(M_i^T P)``, P made orthonormal between them: both are linear in M, so a plain
    all-reduce adds them up. Saves all but ``r (n + m)`` of ``n m`` elements; costs three products of r columns and
    the rest of M, which error feedback sends later (wrap it in ``feedback``: without it, what lies outside of r
    directions is lost).

    A flat buffer is taken apart by its layout: each tensor is its own matrix, its first dimension against all
    others, and keeps its Q under its name; all P travel in one message and all Q in another. Tensors that would
    save less than half (vectors, small matrices) travel whole beside the P. Of a row-sparse contribution only the
    touched rows of P travel, with their indices; the others are zero.

    Q is kept orthonormal; where columns died (a gradient of zeros, or of lower rank) new directions are drawn. NaN
    and infinity anywhere in a matrix make all of its average NaN, and leave Q as it was.

    Args:
        rank: columns of P and Q.
        values: ``"float32"`` sends P and Q as they are, ``"float16"`` and ``"bfloat16"`` in 16 bits.

    Reference: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", NeurIPS 2019, algorithms 1 and 2.
    """

    rank: int = 4
    values: str = "float32"
    name: ClassVar[str] = "powersgd"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Dense, Sparse)
    agrees: ClassVar[bool] = True
    conserves: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    linear: ClassVar[bool] = True

    def shrinks(self, shape: Sequence[int]) -> bool:
        """Return whether a tensor of this shape is sent as a product: where that halves its elements or better."""
        rows, columns = matrix_shape(shape)
        return 2 * self.rank * (rows + columns) <= rows * columns

    def init(self, like: Contribution) -> State:
        """Return a random orthonormal Q for each matrix, equal on all ranks."""
        dtype, device = sum_dtype(like.values.dtype), like.values.device
        if isinstance(like, Sparse):
            shrinks = 2 * self.rank <= like.width
            return State(extra={QUERY: query(like.width, self.rank, "", dtype, device)} if shrinks else {})
        return State(
            extra={
                _key(slot): query(matrix_shape(slot.shape)[1], self.rank, slot.name, dtype, device)
                for slot in slots(like)
                if self.shrinks(slot.shape)
            }
        )

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to average P, and whatever travels whole."""
        checked(x, self.takes, self.name)
        if isinstance(x, Sparse):
            return reduce_rows(x, state, QUERY, self.values, comm, step)
        average = DenseAverage(self.values)
        layout = Layout(slots(x))
        thin = [slot for slot in layout.slots if _key(slot) in state.extra]
        whole = [slot for slot in layout.slots if _key(slot) not in state.extra]
        with span("encode", step.name):
            flat = x.values.detach().reshape(-1).to(sum_dtype(x.values.dtype))
            matrices = [layout.view(flat, slot).view(matrix_shape(slot.shape)) for slot in thin]
            queries = [state.extra[_key(slot)] for slot in thin]
            first = [m @ q for m, q in zip(matrices, queries, strict=True)]
            first += [layout.view(flat, slot) for slot in whole]
        pushed = average.start(Dense(_joined(first, flat)), State(), comm, step)

        def finish() -> Reduced:
            value, sent = torch.zeros_like(flat), torch.zeros_like(flat)
            done = pushed.wait()
            with span("encode", step.name):
                means = _parted(done.value.values, first)
                mine = means if done.sent is None else _parted(done.sent.values, first)
                for slot, mean, own, given in zip(
                    whole, means[len(thin) :], mine[len(thin) :], first[len(thin) :], strict=True
                ):
                    layout.view(value, slot).copy_(mean)
                    layout.view(sent, slot).copy_(given if done.sent is None else own)
                bases = [orthonormal(p) for p in means[: len(thin)]]
                second = [m.T @ p for m, p in zip(matrices, bases, strict=True)]
            if not thin:
                return Reduced(_like(value, x), _like(sent, x), state)
            done = average.start(Dense(_joined(second, flat)), State(), comm, step).wait()
            with span("decode", step.name):
                means = _parted(done.value.values, second)
                mine = second if done.sent is None else _parted(done.sent.values, second)
                kept = {}
                for slot, p, mean, own, before in zip(thin, bases, means, mine, queries, strict=True):
                    torch.mm(p, mean.T, out=layout.view(value, slot).view(matrix_shape(slot.shape)))
                    torch.mm(p, own.T, out=layout.view(sent, slot).view(matrix_shape(slot.shape)))
                    kept[_key(slot)] = next_query(mean, before, step.named(slot.name or step.name))
            return Reduced(_like(value, x), _like(sent, x), State(extra=kept))

        return Later(finish)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the two messages of a matrix, or the one of a tensor that travels whole."""
        if pattern.density < 1.0:
            return rows_traffic(pattern, size, self.rank, self.values)
        average = DenseAverage(self.values)
        itemsize = max(4, pattern.itemsize)

        def of(elements: int) -> Traffic:
            return average.traffic(Sparsity(elements, 1, 1.0, itemsize=itemsize), size)

        if not self.shrinks((pattern.num_rows, pattern.width)):
            return of(pattern.num_rows * pattern.width)
        return of(pattern.num_rows * self.rank) + of(pattern.width * self.rank)


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows and columns of a tensor seen as a matrix; a vector is one column."""
    return (shape[0] if len(shape) else 1), torch.Size(shape[1:]).numel()


def _key(slot: Slot) -> str:
    return f"{QUERY}.{slot.name}"


def _joined(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts]) if parts else like.new_empty(0)


def _parted(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    pieces = flat.split([part.numel() for part in like])
    return [piece.view(part.shape) for piece, part in zip(pieces, like, strict=True)]


def _like(flat: Tensor, x: Dense) -> Dense:
    return Dense(flat.to(x.values.dtype).view(x.values.shape), x.layout)


def powersgd(rank: int = 4, values: str = "float32") -> PowerSgd:
    """Make the low-rank average; see ``PowerSgd``.

    Raises:
        UserError: for a rank that is not a whole number of 1 or more.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise UserError(f"powersgd: rank must be a whole number of 1 or more, got {rank!r}")
    return PowerSgd(rank, checked_values(values, "powersgd"))


def powersgd_scheme(rank: int = 4, values: str = "float32", memory: bool = True) -> Named:
    """PowerSGD with error feedback unless ``memory`` is False."""
    reducer = powersgd(rank, values)
    return named(feedback(reducer) if memory else reducer, "powersgd")
