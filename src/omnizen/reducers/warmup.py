"""One reducer for the first steps, another one from then on."""

from __future__ import annotations

from dataclasses import dataclass

from omnizen.protocols import Comm, Later, Pending, Reducer
from omnizen.reducers.by_size import shared_kinds, whole_number
from omnizen.reducers.state import inner, joined, nested
from omnizen.types import Contribution, Reduced, Sparsity, State, Step, Traffic

FIRST, THEN = "first", "then"


@dataclass(frozen=True, slots=True)
class Warmup:
    """Use another reducer while gradients are large and change fast; the steps' numbers decide, on all ranks alike.

    Args:
        first: reducer of steps 0 to ``steps - 1``.
        then: reducer of all later steps.
        steps: how many steps the first one has.

    Raises:
        Incompatible: when no kind of contribution is taken by both.

    Reference: warm-up of Lin et al., "Deep Gradient Compression", ICLR 2018.
    """

    first: Reducer
    then: Reducer
    steps: int

    def __post_init__(self) -> None:
        shared_kinds("Warmup", self.first, self.then)
        whole_number("Warmup", "steps", self.steps)

    @property
    def name(self) -> str:
        """Both names with the step of the change."""
        return f"warmup({self.first.name}, {self.then.name} from {self.steps})"

    @property
    def takes(self) -> tuple[type[Contribution], ...]:
        """What both take."""
        return shared_kinds("Warmup", self.first, self.then)

    @property
    def agrees(self) -> bool:
        """Whether both agree."""
        return self.first.agrees and self.then.agrees

    @property
    def conserves(self) -> bool:
        """Whether both conserve."""
        return self.first.conserves and self.then.conserves

    @property
    def exact(self) -> bool:
        """Whether both are exact."""
        return self.first.exact and self.then.exact

    def init(self, like: Contribution) -> State:
        """Return both states in one."""
        return joined(nested(self.first.init(like), FIRST), nested(self.then.init(like), THEN))

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to average with the reducer whose turn it is; the other's state is kept."""
        reducer, mine = (self.first, FIRST) if step.n < self.steps else (self.then, THEN)
        other = THEN if mine == FIRST else FIRST
        pending = reducer.start(x, inner(state, mine), comm, step)

        def finish() -> Reduced:
            reduced = pending.wait()
            both = joined(nested(reduced.state, mine), nested(inner(state, other), other))
            return Reduced(reduced.value, reduced.sent, both, reduced.staleness)

        return Later(finish)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict what the reducer of all later steps moves."""
        return self.then.traffic(pattern, size)


def warmup(first: Reducer, then: Reducer, steps: int) -> Warmup:
    """Make a change of reducers after some steps; see ``Warmup``."""
    return Warmup(first, then, steps)
