"""Only some elements of a dense tensor travel: a selector chooses them, any reducer averages them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from omnizen.errors import Incompatible, UserError
from omnizen.protocols import Comm, Later, Pending, Reducer, Selector, SharedSelector
from omnizen.reducers.bases import Shortened
from omnizen.reducers.by_size import checked_reducer
from omnizen.reducers.contribution import as_tensor, checked
from omnizen.reducers.segments import segments, slots
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Reduced, Sparse, Sparsity, State, Step, Traffic


@dataclass(frozen=True, slots=True)
class Selected(Shortened):
    """Choose elements of each tensor, average those, leave the others at zero.

    Saves all other elements; what they held is lost unless the selector is unbiased or error feedback is put around
    this. With a selector whose choice all ranks share (random-k, random-block) no index travels: the values are
    compacted and summed on the wire by a reducer of dense tensors. Any other selector needs a reducer of rows; each
    rank then draws its own random numbers.

    Args:
        selector: chooses the elements, tensor by tensor.
        reducer: averages what was chosen: takes Dense for a shared choice, else Sparse.

    Raises:
        Incompatible: when the reducer does not take what the selector leads to.

    Reference: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; for the shared
    choice Foroutan Eghlidi and Jaggi, "Sparse Communication for Training Deep Networks", 2020.
    """

    selector: Selector
    reducer: Reducer

    def __post_init__(self) -> None:
        if not hasattr(self.selector, "select"):
            raise UserError(f"Selected takes a selector, got {self.selector!r}; catalog.selector(name) makes one")
        checked_reducer("Selected", self.reducer)
        if isinstance(self.selector, SharedSelector):
            if Dense not in self.reducer.takes:
                needs = f"a reducer of dense tensors for what {self.selector.name} compacts"
                raise Incompatible("Selected", self.reducer.name, needs, "dense, for instance")
        elif Sparse not in self.reducer.takes:
            needs = f"a reducer of rows for what {self.selector.name} selects"
            raise Incompatible("Selected", self.reducer.name, needs, "agsparse, for instance")

    @property
    def name(self) -> str:
        """Both names."""
        return f"selected({self.selector.name}, {self.reducer.name})"

    def init(self, like: Contribution) -> State:
        """Return the reducer's state for what will be selected."""
        if isinstance(self.selector, SharedSelector):
            return self.reducer.init(Dense(self._select(like, Step(0), "").values.view(-1)))
        none = torch.empty(0, dtype=torch.int64, device=like.values.device)
        return self.reducer.init(Sparse(none, like.values.new_empty(0, 1), like.values.numel()))

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Select and begin to average."""
        checked(x, self.takes, self.name)
        with span("select", step.name):
            shared = isinstance(self.selector, SharedSelector)
            kept = self._select(x, step, "" if shared else f"/{comm.rank}")
            given: Contribution = Dense(kept.values.view(-1)) if shared else kept
        pending = self.reducer.start(given, state, comm, step)

        def finish() -> Reduced:
            reduced = pending.wait()
            sent = given if reduced.sent is None else reduced.sent
            if isinstance(given, Dense):
                value = _at(kept, as_tensor(reduced.value))
                return replace(reduced, value=value, sent=_at(kept, as_tensor(sent)))
            return replace(reduced, value=_shaped(reduced.value, x), sent=_shaped(sent, x))

        return Later(finish)

    def _select(self, x: Contribution, step: Step, own: str) -> Sparse:
        """Return what is selected of each tensor, as elements of the whole; ``own`` tells ranks' choices apart."""
        assert isinstance(x, Dense)
        found = []
        for slot, (part, at) in zip(slots(x), segments(Dense(x.values.detach(), x.layout), step), strict=True):
            kept = self.selector.select(part.values.reshape(-1), at.named(at.name + own))
            found.append((kept.indices + slot.offset, kept.values))
        rows = torch.cat([indices for indices, _ in found])
        return Sparse(rows, torch.cat([values for _, values in found]), x.values.numel())

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict what the reducer moves of one selected tensor; chance choices count at their mean."""
        numel = pattern.num_rows * pattern.width
        least, most = self.selector.keeps(numel)
        kept = float(most) if least == most else self.selector.density * numel
        if isinstance(self.selector, SharedSelector):
            return self.reducer.traffic(Sparsity(most, 1, 1.0, itemsize=pattern.itemsize), size)
        density = kept / numel if numel else 0.0
        return self.reducer.traffic(Sparsity(numel, 1, density, itemsize=pattern.itemsize), size)


def _at(kept: Sparse, values: Tensor) -> Sparse:
    return Sparse(kept.indices, values.reshape(-1, 1), kept.num_rows)


def _shaped(x: Contribution, like: Contribution) -> Contribution:
    """Return rows as they are, and a whole tensor in the shape of what was given."""
    return x if isinstance(x, Sparse) else Dense(x.values.view(like.values.shape))


def selected(selector: Selector, reducer: Reducer) -> Selected:
    """Let only some elements travel; see ``Selected``."""
    return Selected(selector, reducer)
