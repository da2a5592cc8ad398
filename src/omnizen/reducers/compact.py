"""Only the elements that can differ from zero: gradients of pruned models share their zeros on all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.errors import Incompatible, UserError
from omnizen.protocols import Comm, Later, Pending, Reducer
from omnizen.reducers.bases import Around
from omnizen.reducers.by_size import checked_reducer, whole_number
from omnizen.reducers.contribution import checked
from omnizen.reducers.dense import DenseAverage
from omnizen.reducers.named import Named, named
from omnizen.reducers.shared_scale import shared_scale
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Reduced, Sparsity, State, Step, Traffic

SUPPORT, PLACES, QUIET, FALLBACKS = "support", "places", "quiet", "fallbacks"
WHOLE = DenseAverage()


@dataclass(frozen=True, slots=True)
class Compact(Around):
    """All-reduce the elements of a support that all ranks know, without indices; the others are zero everywhere.

    The support comes from the masks of a pruned model (``with_support``), or is observed: elements that were not
    zero in all averages so far, once none was added for ``settle`` steps. Until then everything travels. Ranks
    agree without a message, as they see the same averages.

    Observed zeros are not trusted: each rank says in every step (one element more) whether it has anything beside
    the support; if any has, the rest travels in the same step, and the support is observed anew. So rows that
    wake up late are never lost, and the average stays exact. Saves ``1 - s`` of the elements for a support of the
    fraction s; costs a look at every element, and a second message in a step in which something woke up.

    Args:
        reducer: averages the compacted vector: takes Dense, and keeps no memory between steps.
        settle: steps without a change after which an observed support is used.

    Reference: Wang et al., "PacTrain: Pruning and Adaptive Sparse Gradient Compression for Efficient Collective
    Communication in Distributed Deep Learning", DAC 2025; there observed zeros are final.
    """

    reducer: Reducer = WHOLE
    settle: int = 10
    name: ClassVar[str] = "compact"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Dense,)

    def __post_init__(self) -> None:
        checked_reducer("Compact", self.reducer)
        if Dense not in self.reducer.takes:
            raise Incompatible("Compact", self.reducer.name, "a reducer of dense tensors", "dense, for instance")
        whole_number("Compact", "settle", self.settle)

    def init(self, like: Contribution) -> State:
        """Return an empty support: whole tensors travel until one is known."""
        support = torch.zeros(like.values.shape, dtype=torch.bool, device=like.values.device)
        return State({SUPPORT: support}, {QUIET: 0.0, FALLBACKS: 0.0})

    def with_support(self, state: State, support: Tensor) -> State:
        """Return the state in which a support is known.

        Args:
            support: bool, for the first elements of the flat contribution; what lies behind (flags) is kept.

        Raises:
            UserError: for a support of another type, or of more elements than there are.
        """
        whole = torch.ones_like(state.slots[SUPPORT])
        if support.dtype != torch.bool or support.numel() > whole.numel():
            raise UserError(
                f"compact: a support is a bool tensor of at most {whole.numel()} elements, got {support.dtype} "
                f"of {support.numel()}"
            )
        whole.view(-1)[: support.numel()] = support.reshape(-1).to(whole.device)
        places = whole.view(-1).nonzero().view(-1)
        return State({SUPPORT: whole}, {QUIET: float(self.settle), FALLBACKS: 0.0}, {PLACES: places})

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to average the support, or everything while there is none."""
        checked(x, self.takes, self.name)
        flat = x.values.detach().reshape(-1)
        places = state.extra.get(PLACES)
        if places is None:
            pending = WHOLE.start(Dense(flat), State(), comm, step)

            def whole() -> Reduced:
                value = pending.wait().value.values
                return Reduced(_like(value, x), None, self._observed(state, value))

            return Later(whole)
        with span("select", step.name):
            kept = flat[places]
            outside = int(torch.count_nonzero(flat)) - int(torch.count_nonzero(kept))
            flag = flat.new_tensor([float(outside > 0)])
        if self.exact:
            pushed = self.reducer.start(Dense(torch.cat([kept, flag])), State(), comm, step)
        else:
            told = comm.all_reduce(flag)
            pushed = self.reducer.start(Dense(kept), State(), comm, step)

        def finish() -> Reduced:
            done = pushed.wait()
            mean = done.value.values
            anything = mean[-1] if self.exact else told.wait()
            value = torch.zeros_like(flat)
            sent = None if done.sent is None else torch.zeros_like(flat)
            now = state
            if bool(anything != 0):  # the same on all ranks
                rest = flat.clone()
                rest[places] = 0
                value = WHOLE.start(Dense(rest), State(), comm, step).wait().value.values
                sent = None if sent is None else rest.clone()
            with span("decode", step.name):
                value[places] = mean[: len(places)]
                if sent is not None and done.sent is not None:
                    sent[places] = done.sent.values[: len(places)]
            if bool(anything != 0):
                now = self._observed(state, value)
                now.scalars |= {QUIET: 0.0, FALLBACKS: state.scalars[FALLBACKS] + 1}
                now.extra.clear()
            return Reduced(_like(value, x), None if sent is None else _like(sent, x), now)

        return Later(finish)

    def _observed(self, state: State, value: Tensor) -> State:
        """Return the state after another average was seen."""
        before = state.slots[SUPPORT]
        support = before | (value != 0).view(before.shape)
        quiet = state.scalars[QUIET] + 1 if torch.equal(support, before) else 0.0
        kept = State({SUPPORT: support}, {**state.scalars, QUIET: quiet})
        if quiet >= self.settle:
            kept.extra[PLACES] = support.view(-1).nonzero().view(-1)
        return kept

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict what travels until a support is known: everything."""
        return WHOLE.traffic(pattern, size)

    def compact_traffic(self, kept: int, size: int, itemsize: int = 4) -> Traffic:
        """Predict what travels for a support of this many elements."""
        one = self.reducer.traffic(Sparsity(kept + self.exact, 1, 1.0, itemsize=itemsize), size)
        return one if self.exact else one + WHOLE.traffic(Sparsity(1, 1, 1.0, itemsize=itemsize), size)


def _like(flat: Tensor, x: Contribution) -> Dense:
    assert isinstance(x, Dense)
    return Dense(flat.view(x.values.shape), x.layout)


def compact(reducer: Reducer = WHOLE, settle: int = 10) -> Compact:
    """Make the average over a shared support; see ``Compact``."""
    return Compact(reducer, settle)


def ternary_scheme(settle: int = 10, clip: float | None = 2.5) -> Named:
    """Three levels for each element of the support, by chance and unbiased but for clipping; no memory."""
    levels = shared_scale(bits=4, levels=1, rounding="random", clip=clip)
    return named(compact(levels, settle), "compact-ternary")
