"""Momentum on each rank, before anything is left out: what is sent late was accelerated in time."""

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
from omnizen.reducers.feedback import INNER, RESIDUAL, keep
from omnizen.reducers.state import inner, joined, nested
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Reduced, Sparsity, State, Step, Traffic

MOMENTUM = "momentum"


@dataclass(frozen=True, slots=True)
class LocalMomentum(Around):
    """Error feedback around this rank's own momentum: ``u <- m u + g``, reduce ``p = e + u``, ``e <- p - sent``.

    The optimizer must have no momentum of its own: the sum over steps of what arrives is that of momentum SGD.
    Costs memory of two float32 tensors of the gradient's shape.

    With ``masked`` the momentum of what was sent starts anew (momentum factor masking of Deep Gradient Compression,
    momentum masking of Sparse Binary Compression): an old direction does not push a weight after its sum was sent.

    ``detached`` and ``weight_decay`` are for the training loop (Detached Error Feedback): it lets weights stand at
    ``y = x - detached * lr * e`` during forward and backward, and adds ``weight_decay * y`` to g. A detached point
    raises the largest stable step size; below that size it changes little.

    Args:
        reducer: the reducer that loses something; takes Dense.
        momentum: ``m`` in [0, 1).
        masked: whether momentum is set to zero where something was sent.
        clip_norm: largest 2-norm of a rank's contribution (the whole flat bucket) before momentum; a limit ``c``
            for the average of n ranks is ``c / sqrt(n)`` here.
        detached: ``lambda`` in [0, 1]; 0 is error feedback, 1 looks one whole residual ahead.
        weight_decay: factor of the weights that is added to the gradient at the detached point.

    Raises:
        Incompatible: when the reducer does not conserve, or takes no dense tensors.

    Reference: Lin et al., "Deep Gradient Compression", ICLR 2018; Sattler et al., "Sparse Binary Compression",
    IJCNN 2019; Xu and Huang, "Detached Error Feedback for Distributed SGD with Random Sparsification", ICML 2022.
    """

    reducer: Reducer
    momentum: float = 0.9
    masked: bool = False
    clip_norm: float | None = None
    detached: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        checked_reducer("LocalMomentum", self.reducer)
        if not self.reducer.conserves:
            raise Incompatible("LocalMomentum", self.reducer.name, "a reducer that conserves its input")
        if Dense not in self.reducer.takes:
            raise Incompatible("LocalMomentum", self.reducer.name, "a reducer of dense tensors", "selected(...)")
        _within("momentum", self.momentum, 0.0, 1.0, open_end=True)
        _within("detached", self.detached, 0.0, 1.0)
        _within("weight_decay", self.weight_decay, 0.0, float("inf"))
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise UserError(f"LocalMomentum: clip_norm must be above 0, got {self.clip_norm!r}")

    @property
    def name(self) -> str:
        """The reducer's name behind the wrapper's."""
        return f"local-momentum({self.reducer.name})"

    @property
    def takes(self) -> tuple[type[Contribution], ...]:
        """Dense tensors."""
        return (Dense,)

    @property
    def conserves(self) -> bool:
        """Always, else the wrapper refuses."""
        return True

    @property
    def exact(self) -> bool:
        """Never: what arrives is not this step's gradient."""
        return False

    def init(self, like: Contribution) -> State:
        """Return zeros for residual and momentum beside the reducer's own state."""
        zeros = torch.zeros(like.values.shape, dtype=sum_dtype(like.values.dtype), device=like.values.device)
        own = State({RESIDUAL: zeros, MOMENTUM: zeros.clone()})
        return joined(own, nested(self.reducer.init(like), INNER))

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Add to the momentum and begin to average it; the residual is updated in place when the result comes."""
        residual, momentum = state.slots[RESIDUAL], state.slots[MOMENTUM]
        with span("select", step.name):
            grad = _clipped(x.values.detach().to(residual.dtype), self.clip_norm)
            momentum.mul_(self.momentum).add_(grad)
            total = residual + momentum
            given = with_values(x, total.to(x.values.dtype))
        pending = self.reducer.start(given, inner(state, INNER), comm, step)

        def finish() -> Reduced:
            reduced = pending.wait()
            sent = given if reduced.sent is None else reduced.sent
            with span("select", step.name):
                keep(residual, with_values(x, total), sent)
                if not bool(torch.isfinite(momentum.sum())):
                    momentum.copy_(finite(momentum))
                if self.masked:
                    _mask(momentum, sent)
            own = State({RESIDUAL: residual, MOMENTUM: momentum})
            return Reduced(reduced.value, sent, joined(own, nested(reduced.state, INNER)), reduced.staleness)

        return Later(finish)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict what the reducer moves."""
        return self.reducer.traffic(pattern, size)


def _within(setting: str, value: float, low: float, high: float, *, open_end: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UserError(f"LocalMomentum: {setting} must be in [{low:g}, {high:g}], got {value!r}")
    if open_end and value == high:
        raise UserError(f"LocalMomentum: {setting} must be below {high:g}, got {value!r}")


def _clipped(grad: Tensor, limit: float | None) -> Tensor:
    """Scale to a 2-norm of at most ``limit``; what is not finite stays as it is."""
    if limit is None:
        return grad
    norm = torch.linalg.vector_norm(grad)
    return grad * (limit / norm) if limit < norm < float("inf") else grad


def _mask(momentum: Tensor, sent: Contribution) -> None:
    if isinstance(sent, Dense):
        momentum.masked_fill_(sent.values.view_as(momentum) != 0, 0.0)
    else:
        momentum.view(-1)[sent.indices[sent.values.view(-1) != 0]] = 0.0


def find(reducer: Reducer) -> LocalMomentum | None:
    """Return the local momentum inside a reducer, however it is wrapped.

    Example:
        >>> from omnizen import catalog
        >>> find(catalog.reducer("dgc")).momentum, find(catalog.reducer("topk"))
        (0.9, None)
    """
    inside: object = reducer
    while inside is not None and not isinstance(inside, LocalMomentum):
        inside = getattr(inside, "reducer", None)
    return inside


def local_momentum(
    reducer: Reducer,
    momentum: float = 0.9,
    masked: bool = False,
    clip_norm: float | None = None,
    detached: float = 0.0,
    weight_decay: float = 0.0,
) -> LocalMomentum:
    """Put this rank's momentum before a reducer that loses something; see ``LocalMomentum``."""
    return LocalMomentum(reducer, momentum, masked, clip_norm, detached, weight_decay)
