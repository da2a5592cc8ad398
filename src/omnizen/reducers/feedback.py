"""Error feedback: what a reducer did not send in one step, it is given again in the next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from omnizen.errors import Incompatible, UserError
from omnizen.kernels.merge import sum_dtype
from omnizen.protocols import Comm, Later, Pending, Reducer
from omnizen.reducers.bases import Around
from omnizen.reducers.by_size import checked_reducer
from omnizen.reducers.contribution import finite, with_values
from omnizen.reducers.state import inner, joined, nested
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Reduced, Sparsity, State, Step, Traffic

RESIDUAL, INNER = "residual", "inner"


@dataclass(frozen=True, slots=True)
class ErrorFeedback(Around):
    """Add the residual ``e`` before reducing and keep what was not sent: ``e <- decay e + x - sent``.

    Lets a lossy reducer lose nothing in the long run. Costs memory of one float32 tensor of the gradient's shape.
    For row-sparse contributions only the rows that this step touches take part; the residual of the others waits
    until their row is touched again, so that the rows sent do not grow from step to step. A rank that answers for
    the rounding of a row that it never touches itself (an owner in Zen) therefore goes on owing it.
    Where a contribution is NaN or infinite the residual is set to zero: the bad value is passed on once, for
    whoever watches the gradients, and does not come back.

    Args:
        reducer: the reducer that loses something.
        decay: factor of the old residual, in ``(0, 1]``.

    Raises:
        Incompatible: when the reducer does not conserve: then ``x - sent`` is not what is missing in the average.

    Reference: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
    """

    reducer: Reducer
    decay: float = 1.0

    def __post_init__(self) -> None:
        checked_reducer("ErrorFeedback", self.reducer)
        if not self.reducer.conserves:
            raise Incompatible(
                "ErrorFeedback",
                self.reducer.name,
                "a reducer that conserves its input",
                "one whose mean of values equals the mean of what was sent",
            )
        if not isinstance(self.decay, int | float) or not 0.0 < self.decay <= 1.0:
            raise UserError(f"ErrorFeedback: decay must be in (0, 1], got {self.decay!r}")

    @property
    def name(self) -> str:
        """The reducer's name behind the wrapper's."""
        return f"feedback({self.reducer.name})"

    @property
    def conserves(self) -> bool:
        """Always, else the wrapper refuses."""
        return True

    @property
    def exact(self) -> bool:
        """Whether the reducer is exact; then the residual stays zero."""
        return self.reducer.exact

    def init(self, like: Contribution) -> State:
        """Return a residual of zeros beside the reducer's own state."""
        shape = like.values.shape if isinstance(like, Dense) else (like.num_rows, like.width)
        residual = torch.zeros(shape, dtype=sum_dtype(like.values.dtype), device=like.values.device)
        return joined(State({RESIDUAL: residual}), nested(self.reducer.init(like), INNER))

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Add the residual and begin to average; the residual is updated in place when the result comes."""
        residual = state.slots[RESIDUAL]
        with span("select", step.name):
            old = residual if isinstance(x, Dense) else residual[x.indices]
            total = x.values.detach().to(residual.dtype) + self.decay * old
            given = with_values(x, total.to(x.values.dtype))
        pending = self.reducer.start(given, inner(state, INNER), comm, step)

        def finish() -> Reduced:
            reduced = pending.wait()
            sent = given if reduced.sent is None else reduced.sent
            with span("select", step.name):
                keep(residual, with_values(x, total), sent)
            kept = joined(State({RESIDUAL: residual}), nested(reduced.state, INNER))
            return Reduced(reduced.value, sent, kept, reduced.staleness)

        return Later(finish)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict what the reducer moves."""
        return self.reducer.traffic(pattern, size)


def keep(residual: Tensor, total: Contribution, sent: Contribution) -> None:
    """Set the residual to ``total - sent``; rows outside ``total`` hold their old residual, less what was sent.

    What was sent of a dense tensor may be some of its flat elements: then only those are touched.
    """
    if isinstance(total, Dense):
        residual.copy_(total.values)
    else:
        residual[total.indices] = total.values
    if isinstance(sent, Dense):
        residual.sub_(sent.values.view_as(residual))
        residual.copy_(finite(residual))
    else:
        rows = residual.view(sent.num_rows, sent.width)
        rows.index_add_(0, sent.indices, sent.values.to(residual.dtype), alpha=-1)
        if isinstance(total, Dense):
            residual.copy_(finite(residual))
        else:
            touched = torch.cat([total.indices, sent.indices])
            residual[touched] = finite(residual[touched])


def feedback(reducer: Reducer, decay: float = 1.0) -> ErrorFeedback:
    """Wrap a reducer that loses something; see ``ErrorFeedback``."""
    return ErrorFeedback(reducer, decay)
