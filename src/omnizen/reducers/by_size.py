"""Small tensors by one reducer, large ones by another."""

from __future__ import annotations

from dataclasses import dataclass

from omnizen.errors import Incompatible, UserError
from omnizen.protocols import Comm, Pending, Reducer
from omnizen.types import Contribution, Dense, Reduced, Sparsity, State, Step, Traffic


def checked_reducer(wrapper: str, reducer: Reducer) -> None:
    """Refuse what a wrapper cannot wrap, a scheme's name for instance."""
    if not hasattr(reducer, "takes") or not hasattr(reducer, "start"):
        raise UserError(f"{wrapper} wraps reducers, got {reducer!r}; catalog.reducer(name) makes one")


def whole_number(wrapper: str, name: str, value: int) -> None:
    """Refuse a setting that is no whole number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f"{wrapper}: {name} must not be negative and must be a whole number, got {value!r}")


def shared_kinds(wrapper: str, first: Reducer, second: Reducer) -> tuple[type[Contribution], ...]:
    """Return the kinds of contribution that both reducers take.

    Raises:
        Incompatible: when there is none.
    """
    for each in (first, second):
        checked_reducer(wrapper, each)
    both = tuple(kind for kind in first.takes if kind in second.takes)
    if not both:
        raise Incompatible(wrapper, f"{first.name} with {second.name}", "a kind of contribution that both take")
    return both


@dataclass(frozen=True, slots=True)
class BySize:
    """Choose by the bytes of the whole tensor: compression does not pay for tensors that one message carries.

    Args:
        small: reducer for tensors below the limit.
        large: reducer for all others.
        at_bytes: the limit.

    Raises:
        Incompatible: when no kind of contribution is taken by both.
    """

    small: Reducer
    large: Reducer
    at_bytes: int = 64 * 1024

    def __post_init__(self) -> None:
        shared_kinds("BySize", self.small, self.large)
        whole_number("BySize", "at_bytes", self.at_bytes)

    @property
    def name(self) -> str:
        """Both names with the limit between them."""
        return f"by_size({self.small.name}<{self.at_bytes}<={self.large.name})"

    @property
    def takes(self) -> tuple[type[Contribution], ...]:
        """What both take."""
        return shared_kinds("BySize", self.small, self.large)

    @property
    def agrees(self) -> bool:
        """Whether both agree."""
        return self.small.agrees and self.large.agrees

    @property
    def conserves(self) -> bool:
        """Whether both conserve."""
        return self.small.conserves and self.large.conserves

    @property
    def exact(self) -> bool:
        """Whether both are exact."""
        return self.small.exact and self.large.exact

    def init(self, like: Contribution) -> State:
        """Return the state of the reducer that fits."""
        return self._for(like).init(like)

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to average with the reducer that fits."""
        return self._for(x).start(x, state, comm, step)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict what the reducer that fits moves."""
        fits = self.small if pattern.dense_bytes < self.at_bytes else self.large
        return fits.traffic(pattern, size)

    def _for(self, x: Contribution) -> Reducer:
        elements = x.values.numel() if isinstance(x, Dense) else x.num_rows * x.width
        return self.small if elements * x.values.element_size() < self.at_bytes else self.large


def by_size(small: Reducer, large: Reducer, at_bytes: int = 64 * 1024) -> BySize:
    """Make a choice by size; see ``BySize``."""
    return BySize(small, large, at_bytes)
