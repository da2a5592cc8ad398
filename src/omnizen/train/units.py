"""What is reduced in one go: a bucket of dense gradients, or the rows of one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from omnizen.protocols import Comm, Pending, Reducer
from omnizen.reducers.local_momentum import find
from omnizen.spans import span
from omnizen.train.finite import FiniteWatch
from omnizen.train.rows import like_param, no_rows, real, rows_of, sparse_grad, sum_dtype
from omnizen.types import Contribution, Dense, Layout, Reduced, Sparse, State, Step

Rest = Callable[[float], None]
"""What is left of a reduction: waits for the average, multiplies it and puts it in place."""


class Unit(Protocol):
    """Parameters whose gradients travel together; ``reduce`` runs in the wire thread, ``finish`` in the user's."""

    name: str
    params: list[Parameter]
    state: State

    @property
    def scheme(self) -> object:
        """What keeps ``state``: a unit of the same name and scheme may go on with it."""
        ...

    @property
    def exact(self) -> bool:
        """Whether averages are exact up to summation order."""
        ...

    @property
    def patient(self) -> bool:
        """Whether its rest may wait until the next unit has begun, so that the links are never idle in between."""
        ...

    def reduce(self, comm: Comm, factor: float, step: Step) -> Rest:
        """Begin to average the gradients, times ``factor``; the rest writes in place those that this rank has."""
        ...

    def finish(self) -> None:
        """Give ``.grad`` new tensors where the old ones could not be written to."""
        ...


def scale(values: Tensor, factor: float) -> None:
    """Multiply in place; 0 gives zeros even for NaN, and 1 changes no bit."""
    if factor == 0.0:
        values.zero_()
    elif factor != 1.0:
        values.mul_(factor)


SPARSE_FLAG = 2.0**-12
"""Flag of a sparse gradient, that of a dense one being 1: small enough for 4000 ranks' not to make up one."""


class DenseBucket:
    """Dense gradients in one flat buffer, laid out once and for all.

    One flag a parameter follows the gradients: whether ranks have one, and of which kind. A parameter without a
    gradient here gets the average when another rank has one, sparse if all others' are, and keeps None when none
    has, as in one process. A reducer that loses something gets the layout, to work tensor by tensor, and the flags
    go in a message of their own. Complex gradients travel as pairs of real numbers.
    """

    def __init__(self, named: Sequence[tuple[str, Parameter]], reducer: Reducer) -> None:
        self.params = [p for _, p in named]
        self.name, self.reducer = named[0][0], reducer
        self.scheme, self.exact = reducer, reducer.exact
        self.patient = reducer.exact  # the other reducers' second exchange should not wait for the next bucket
        self.layout = Layout.of([(name, real(p.detach()).shape) for name, p in named])
        like = self.params[0]
        size = self.layout.numel + (len(named) if reducer.exact else 0)
        self.flat = torch.zeros(size, dtype=sum_dtype(like.dtype), device=like.device)
        self.state = reducer.init(self._contribution())
        self._late: list[tuple[Parameter, Tensor, bool]] = []
        momentum = find(reducer)
        self.decay = momentum.weight_decay if momentum is not None else 0.0
        self.watch = FiniteWatch()
        self.on_sent: Callable[[Contribution], None] | None = None
        """Told what this rank really contributed, where the reducer shortens."""

    def reduce(self, comm: Comm, factor: float, step: Step) -> Rest:
        """Copy in and send off; the rest copies out."""
        numel = self.layout.numel
        grads = [p.grad for p in self.params]
        with span("encode", self.name):
            for slot, grad in zip(self.layout.slots, grads, strict=True):
                view = self.layout.view(self.flat, slot)
                if grad is None:
                    view.zero_()
                else:
                    view.copy_(real(grad.to_dense() if grad.is_sparse else grad))
            scale(self.flat[:numel], factor)
            flags = torch.tensor([0.0 if g is None else SPARSE_FLAG if g.is_sparse else 1.0 for g in grads])
            if self.reducer.exact:
                self.flat[numel:] = flags.to(self.flat)
        if self.reducer.exact:
            pending = self.reducer.start(self._contribution(), self.state, comm, step.named(self.name))
            return partial(self._spread, pending, grads, comm.size)
        return partial(self._shorten, comm, grads, flags, step)

    def _spread(self, pending: Pending[Reduced], grads: list[Tensor | None], size: int, after: float) -> None:
        done = pending.wait()
        self.state = done.state
        flat = dense_value(done).to(self.flat.device)
        numel = self.layout.numel
        scale(flat[:numel], after)
        self._copy_out(flat, flat[numel:], grads, size)

    def _shorten(self, comm: Comm, grads: list[Tensor | None], flags: Tensor, step: Step, after: float) -> None:
        flat, counts = self.shortened(comm, flags, step)
        scale(flat, after)
        self._copy_out(flat, counts, grads, comm.size)

    def _copy_out(self, flat: Tensor, counts: Tensor, grads: list[Tensor | None], size: int) -> None:
        with span("decode", self.name):
            for slot, param, grad, flag in zip(self.layout.slots, self.params, grads, counts.tolist(), strict=True):
                view = self.layout.view(flat, slot)
                if grad is not None and not grad.is_sparse:
                    grad.copy_(like_param(view, grad) if grad.is_complex() else view)
                elif flag > 0:
                    all_sparse = flag < 1.0 / size  # not one rank has a dense one
                    self._late.append((param, view, all_sparse if grad is None else True))

    def shortened(self, comm: Comm, flags: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Average by a reducer that loses something; returns the averages and the sums of the flags.

        What is not finite is told before: then the bucket is averaged whole, for all to see, and nothing that is
        kept between steps changes. Gradients go in without the scale of a loss (mixed precision).
        """
        odd = self.watch.odd(self.flat, self.layout)
        told = comm.all_gather([torch.stack([flags, odd]).to(comm.device)]).wait()
        ranks = torch.stack([rows.cpu() for (rows,) in told])
        counts = ranks[:, 0].sum(0)
        if ranks[:, 1].any():
            self.watch.note(ranks[:, 1], self.layout, step)
            return comm.all_reduce(self.flat).wait().div_(comm.size).to(self.flat.device), counts
        scale(self.flat, 1.0 / step.loss_scale)
        if self.decay:
            for slot, param in zip(self.layout.slots, self.params, strict=True):
                self.layout.view(self.flat, slot).add_(real(param.detach()), alpha=self.decay)
        done = self.reducer.start(self._contribution(), self.state, comm, step.named(self.name)).wait()
        self.state = done.state
        if self.on_sent is not None:
            self.on_sent(self._contribution() if done.sent is None else done.sent)
        flat = dense_value(done).to(self.flat.device)
        scale(flat, step.loss_scale)
        return flat, counts

    def _contribution(self) -> Dense:
        """Return gradients and flags, or, for a reducer that loses something, the gradients tensor by tensor."""
        return Dense(self.flat) if self.reducer.exact else Dense(self.flat[: self.layout.numel], self.layout)

    def finish(self) -> None:
        """Give parameters that had no dense gradient here their average, and say what was not finite."""
        self.watch.tell()
        for param, view, sparse in self._late:
            value = like_param(view, param)
            param.grad = sparse_grad(rows_of(value), param) if sparse else value
        self._late.clear()


class RowTable:
    """The touched rows of one parameter.

    Args:
        sparse: the module makes sparse gradients, so a rank without one gets a sparse one.
        patient: the unit behind it is ready soon after.
    """

    def __init__(
        self, name: str, param: Parameter, reducer: Reducer, *, sparse: bool, patient: bool = False
    ) -> None:
        self.name, self.params, self.reducer, self.sparse = name, [param], reducer, sparse
        self.scheme, self.exact, self.patient = reducer, reducer.exact, patient
        self.state = reducer.init(no_rows(param))
        self.watch = FiniteWatch()
        self._late: Tensor | None = None

    def reduce(self, comm: Comm, factor: float, step: Step) -> Rest:
        """Take the touched rows and send them off; the rest puts their averages back."""
        (param,) = self.params
        grad = param.grad
        with span("select", self.name):
            rows = no_rows(param) if grad is None or factor == 0.0 else rows_of(grad)
            if factor not in (0.0, 1.0):
                rows = Sparse(rows.indices, rows.values * factor, rows.num_rows)
        if not self.exact:
            self.watch.look(self.name, rows.values, comm.rank, step)
        pending = self.reducer.start(rows, self.state, comm, step.named(self.name))
        return partial(self._put_back, pending, grad, factor, comm)

    def _put_back(
        self, pending: Pending[Reduced], grad: Tensor | None, factor: float, comm: Comm, after: float
    ) -> None:
        (param,) = self.params
        done = pending.wait()
        self.state = done.state
        value = sparse_value(done, param)
        scale(value.values, after)
        if not len(value.indices):
            # All ranks see this empty union, so all take part; only now may None and an empty gradient differ.
            used = comm.all_reduce(torch.tensor([float(grad is not None)], device=comm.device)).wait()
            if not used.item():
                return
        with span("decode", self.name):
            if grad is None or grad.is_sparse:
                sparse = self.sparse if grad is None else True
                self._late = sparse_grad(value, param) if sparse else _dense(value, param)
            else:
                if factor == 0.0 or not self.reducer.exact:
                    grad.zero_()  # else every row that is not zero here is in the union and gets overwritten
                values = value.values.to(grad.dtype).reshape(len(value.indices), *grad.shape[1:])
                grad.index_copy_(0, value.indices, values)

    def finish(self) -> None:
        """Give the parameter its new gradient where it was sparse or missing, and say what was not finite."""
        self.watch.tell()
        if self._late is not None:
            self.params[0].grad, self._late = self._late, None


def dense_value(done: Reduced) -> Tensor:
    """Return a reduction's flat values."""
    return done.value.values.view(-1) if isinstance(done.value, Dense) else done.value.to_dense().view(-1)


def sparse_value(done: Reduced, like: Tensor) -> Sparse:
    """Return a reduction's rows, where the parameter lies."""
    if isinstance(done.value, Dense):
        return rows_of(done.value.values.view(like.shape).to(like.device))
    rows = done.value
    return Sparse(rows.indices.to(like.device), rows.values.to(like.device), rows.num_rows)


def _dense(rows: Sparse, like: Tensor) -> Tensor:
    return rows.to_dense().to(like.dtype).view(like.shape)
