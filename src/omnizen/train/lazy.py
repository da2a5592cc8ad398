"""Lazy pull: a table's rows are updated by their owners, and go to other ranks only where a batch will read them.

Zen's Balanced Parallelism sends every rank the whole sum, ``(1 + gamma_n) d M`` bytes. Here a rank sends its rows'
gradients to their owners, whose optimizer updates them, and gets back only rows that its next batch reads and that
changed since it last had them: at most ``2 d M``. Losses are those of the eager form, as every row that a forward
reads is its last value.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from omnizen.codecs.coo import index_dtype
from omnizen.errors import OmnizenError, UserError
from omnizen.kernels.bits import pack_bits, unpack_bits
from omnizen.kernels.merge import merge
from omnizen.plan.lazy import LAZY
from omnizen.protocols import Comm, Pending
from omnizen.spans import span
from omnizen.train.guard import holds_any
from omnizen.train.owned import OwnedRows
from omnizen.train.rows import no_rows, rows_of, sparse_grad
from omnizen.train.units import Rest, scale
from omnizen.types import Parts, Sparse, State, Step, hash_text


class LazyTable:
    """The rows of one table: gradients to their owners, updated rows back to those who will read them.

    ``.grad`` holds, after a synchronised backward, the average of this rank's own rows only.
    """

    scheme: object = LAZY
    exact = patient = True

    def __init__(self, name: str, param: Parameter, comm: Comm) -> None:
        self.name, self.params, self.state = name, [param], State()
        self._comm = comm
        self._index = index_dtype(param.shape[0])
        self._late: Tensor | None = None
        self._given: weakref.ref[Tensor] | None = None
        self._given_version = 0
        self._added = self._owners_step = False
        self.restart()

    def restart(self) -> None:
        """Begin anew: every rank has every row's last value (at the start, and after a checkpoint was read)."""
        (param,) = self.params
        self.rows = OwnedRows(param.shape[0], self._comm.size, self._comm.rank, param.device)
        self._wanted: list[Tensor] | None = None
        self._asked: list[Tensor] = []
        self._requests: list[Tensor] = []
        self._somebody_asked = False
        self._answer: Pending[list[Parts]] | None = None
        self._version = self._state_spread_at = 0

    def reduce(self, comm: Comm, factor: float, step: Step) -> Rest:
        """Send gradients, and the rows that the next batch will read, to their owners; the rest averages."""
        del step
        (param,) = self.params
        grad = param.grad
        left = self._is_given(grad) and not self._added  # what an earlier backward left, untouched by this one
        self._added, self._owners_step = False, True
        with span("select", self.name):
            if grad is not None and not grad.is_sparse:
                raise UserError(
                    f"{self.name} has a dense gradient, so forward reads it as a whole; plan='lazy' is for "
                    "embeddings with sparse=True whose rows are only looked up"
                )
            rows = no_rows(param) if grad is None or left or factor == 0.0 else rows_of(grad)
            self.check_read(rows.indices)
            self._settle()
            if factor not in (0.0, 1.0):
                rows = Sparse(rows.indices, rows.values * factor, rows.num_rows)
        with span("encode", self.name):
            asked = self._wanted or [rows.indices[:0]] * comm.size
            told = torch.tensor([grad is not None and not left, self._wanted is not None], dtype=torch.uint8)
            parts = self._push_parts(rows, asked, told.to(param.device))
        self._asked, self._wanted = asked, None
        return partial(self._average, comm.all_to_all(parts), comm.size)

    def finish(self) -> None:
        """Give the parameter its owners' part of the averaged gradient."""
        given, self._late = self._late, None
        if given is not None:
            self.params[0].grad = given
            self._given, self._given_version = weakref.ref(given), given._version

    def adding(self, _: Tensor) -> None:
        """Before a gradient is added to ``.grad``: refuse to add it to this rank's part of an average."""
        grad = self.params[0].grad
        untouched = grad is not None and grad._version == self._given_version  # neither zeroed nor empty by chance
        if grad is not None and self._is_given(grad) and (untouched or holds_any(grad)):
            raise UserError(
                f"{self.name}.grad holds this rank's part of an average, and a second backward was added to it; "
                "put all but the last backward of a step under run.no_sync(), and zero all gradients after the step"
            )
        self._added = True

    def look_ahead(self, rows: Tensor | None) -> None:
        """Say which rows (any shape, repeats allowed) the batch after the next backward will read, if known."""
        self._wanted = None if rows is None else self.rows.by_owner(self._distinct(rows))

    def stepped(self) -> None:
        """After an optimizer's step: begin to send new values to those who asked for them."""
        if not self._owners_step:  # by an average from before the table was pulled lazily, alike on all ranks
            return
        grad = self.params[0].grad
        self._settle(after_step=True)  # a second step: what is on its way is from before it
        self.rows.changed(self.rows.own[:0] if grad is None else rows_of(grad).indices)
        if self._somebody_asked:
            self._begin_answer()

    def ready(self, rows: Tensor, *, foreseen: bool) -> None:
        """Have the last values of the rows that a batch reads; all ranks call it in the same order.

        Args:
            foreseen: the batch is the one that was looked ahead to.
        """
        if self._answer is None and self._somebody_asked:  # a step was left out: nothing changed, yet they asked
            self._begin_answer()
        answered = self._answer is not None
        self._settle()
        if not (answered and foreseen) and not self.rows.all_current:
            self.pull(rows)

    def pull(self, rows: Tensor) -> None:
        """Ask the owners now, and wait; called by all ranks."""
        self._asked = self.rows.by_owner(self._distinct(rows))
        which = torch.tensor([hash_text(self.name)], device=rows.device)
        requests = self._comm.all_to_all([[which, part.to(self._index)] for part in self._asked]).wait()
        for rank, (theirs, _) in enumerate(requests):
            if int(theirs) != int(which):
                raise OmnizenError(
                    f"rank {self.rows.rank} looks up rows of {self.name}, rank {rank} of another table: without "
                    "reads=, all ranks must look tables up in the same order; give run.prepare() reads="
                )
        self._requests = [part for _, part in requests]
        self._begin_answer()
        self._settle()

    @torch.no_grad()
    def flush(self) -> None:
        """Give every rank every row's last value; called by all ranks between steps."""
        self._settle()
        if not self.rows.all_current:
            self._spread(self.rows.lacking_anywhere(), [self.params[0].detach()])
            self.rows.all_came()

    @torch.no_grad()
    def spread_state(self, kept: Sequence[dict[str, Any]]) -> None:
        """Make what optimizers keep for each row equal on all ranks; called by all ranks between steps.

        Args:
            kept: each optimizer's state of the parameter.
        """
        if self._state_spread_at != self.rows.changes:
            self._state_spread_at = self.rows.changes
            like = self.params[0].shape
            found = [t for state in kept for _, t in sorted(state.items())]
            self._spread(self.rows.stirred(), [t for t in found if isinstance(t, Tensor) and t.shape == like])

    def _spread(self, rows: Tensor, tensors: list[Tensor]) -> None:
        parts = [rows.to(self._index), *(tensor.index_select(0, rows) for tensor in tensors)]
        for rank, (indices, *values) in enumerate(self._comm.all_gather(parts).wait()):
            if rank != self.rows.rank:
                for tensor, value in zip(tensors, values, strict=True):
                    tensor.index_copy_(0, indices.long().to(tensor.device), value.to(tensor.device))

    def _distinct(self, rows: Tensor) -> Tensor:
        found = rows.detach().to(self.params[0].device).reshape(-1).long().unique()
        if len(found) and not 0 <= int(found[0]) <= int(found[-1]) < self.rows.num_rows:
            wrong = int(found[0]) if int(found[0]) < 0 else int(found[-1])
            raise UserError(f"rows of {self.name} are 0..{self.rows.num_rows - 1}; row {wrong} is to be read")
        return found

    def _is_given(self, grad: Tensor | None) -> bool:
        return grad is not None and self._given is not None and self._given() is grad

    def check_read(self, rows: Tensor) -> None:
        """Refuse rows (``[k]`` int64) that were read without their last values."""
        old = self.rows.maybe_old(rows)
        if len(old):
            raise OmnizenError(
                f"row {int(old[0])} of {self.name} was read in this step without its last value: reads(batch) did "
                "not name it, the batch did not come from the loader of run.prepare(), a step was taken since it "
                "came, or forward read it other than by the embedding; name every row that forward looks up"
            )

    def _push_parts(self, rows: Sparse, asked: list[Tensor], told: Tensor) -> list[Parts]:
        divided = self.rows.ownership.divide(rows.indices, self._index)
        counts = divided.counts.tolist()
        values = rows.values.detach().index_select(0, divided.order).split(counts)
        indices = divided.rows.split(counts)
        return [
            [value, index, ask.to(self._index), told]
            for value, index, ask in zip(values, indices, asked, strict=True)
        ]

    def _average(self, pending: Pending[list[Parts]], size: int, after: float) -> None:
        received = pending.wait()
        (param,) = self.params
        with span("decode", self.name):
            told = torch.stack([flags for *_, flags in received]).any(0).tolist()
            self._requests = [ask for *_, ask, _ in received]
            self._somebody_asked = told[1]
            if told[0]:
                rows, total = merge([part[1] for part in received], [part[0] for part in received])
                scale(total.div_(size), after)
                own = Sparse(rows.to(param.device), total.to(param.device), self.rows.num_rows)
                self._late = sparse_grad(own, param)

    @torch.no_grad()
    def _begin_answer(self) -> None:
        (param,) = self.params
        parts: list[Parts] = []
        with span("encode", self.name):
            for rank, request in enumerate(self._requests):
                rows = request.to(param.device).long()
                places = self.rows.lacking(rank, rows)
                parts.append([param.index_select(0, rows[places]), pack_bits(places, len(rows))])
        self._requests, self._somebody_asked = [], False
        self._version = param._version
        self._answer = self._comm.all_to_all(parts)

    @torch.no_grad()
    def _settle(self, *, after_step: bool = False) -> None:
        """Take the rows that are on their way, if any."""
        if self._answer is None:
            return
        (param,) = self.params
        answers, self._answer = self._answer.wait(), None
        if param._version != self._version and not after_step:
            raise UserError(
                f"{self.name} was written to after optimizer.step(), while rows of it were on their way; call "
                "run.flush() on all ranks before you change weights yourself"
            )
        with span("decode", self.name):
            for asked, (values, bits) in zip(self._asked, answers, strict=True):
                rows = asked[unpack_bits(bits).to(asked.device)]
                param.index_copy_(0, rows, values.to(param.device))
                self.rows.came(asked)
        self._asked = []
