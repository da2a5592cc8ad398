"""Selection by a fitted threshold whose number of stages follows what was selected: SIDCo with its memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from omnizen.protocols import Comm, Later, Pending, Reducer
from omnizen.reducers.bases import Shortened
from omnizen.reducers.selected import Selected
from omnizen.reducers.state import inner, joined, nested
from omnizen.selectors.given import num_kept
from omnizen.selectors.sidco import Sidco, adapted, most_stages, sidco
from omnizen.types import Contribution, Reduced, Sparse, Sparsity, State, Step, Traffic

INNER = "inner"
REMEMBERED = ("stages", "steps", "ratios")


@dataclass(slots=True)
class _Staged:
    """SIDCo with each tensor's own number of stages; notes how many elements it kept and how many it aimed at.

    Args:
        like: the selector, with the number of stages to begin with.
        stages: by name of the tensor.
        seen: kept and aimed at, by name.
    """

    like: Sidco
    stages: dict[str, int]
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    unbiased: bool = False

    @property
    def name(self) -> str:
        return f"adaptive-{self.like.name}"

    @property
    def density(self) -> float:
        return self.like.density

    def select(self, flat: Tensor, step: Step) -> Sparse:
        tensor = step.name.rpartition("/")[0]  # behind it comes the rank
        stages = self.stages.get(tensor, self.like.stages)
        kept = sidco(self.like.fit, self.like.density, stages).select(flat, step)
        self.seen[tensor] = kept.indices.numel(), num_kept(self.like.density, flat.numel())
        return kept

    def keeps(self, numel: int) -> tuple[int, int]:
        return self.like.keeps(numel)


@dataclass(frozen=True, slots=True)
class Adaptive(Shortened):
    """Select by SIDCo, average by any reducer of rows, and remember each tensor's number of stages.

    After every fifth step a tensor that kept 1.2 times what was aimed at gets one stage less, one that kept 0.8
    times one more: the paper's rule, without which the fit of one distribution errs for another for ever. The
    numbers are each rank's own and part of the state, so that they are saved and go on with a run.

    Args:
        reducer: averages what was selected.
        selector: with the number of stages to begin with.

    Reference: Abdelmoniem et al., "An Efficient Statistical-based Gradient Compression Technique for Distributed
    Training Systems", MLSys 2021, algorithm 1.
    """

    reducer: Reducer
    selector: Sidco

    def __post_init__(self) -> None:
        self._selected(State())

    @property
    def name(self) -> str:
        """Both names."""
        return f"adaptive({self.selector.name}, {self.reducer.name})"

    def init(self, like: Contribution) -> State:
        """Return the reducer's state; numbers of stages come with the first step."""
        return nested(self._selected(State()).init(like), INNER)

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Select and begin to average."""
        selected = self._selected(state)
        pending = selected.start(x, inner(state, INNER), comm, step)
        staged = selected.selector
        assert isinstance(staged, _Staged)

        def finish() -> Reduced:
            reduced = pending.wait()
            kept = joined(_remembered(state, staged), nested(reduced.state, INNER))
            return Reduced(reduced.value, reduced.sent, kept, reduced.staleness)

        return Later(finish)

    def _selected(self, state: State) -> Selected:
        stages = {
            name.removesuffix(".stages"): int(number)
            for name, number in state.scalars.items()
            if name.endswith(".stages") and not name.startswith(f"{INNER}.")
        }
        return Selected(_Staged(self.selector, stages), self.reducer)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict what the reducer moves when as many are selected as were aimed at."""
        return self._selected(State()).traffic(pattern, size)


def _remembered(state: State, staged: _Staged) -> State:
    scalars: dict[str, float] = {}
    for tensor, (kept, aimed) in staged.seen.items():
        before = {key: state.scalars.get(f"{tensor}.{key}", 0.0) for key in REMEMBERED}
        before["stages"] = float(staged.stages.get(tensor, staged.like.stages))
        now = adapted(before, kept, aimed, staged.like.density)
        scalars |= {f"{tensor}.{key}": number for key, number in now.items()}
    return State(scalars=scalars)


def adaptive(reducer: Reducer, fit: str = "exponential", density: float = 0.01, stages: int = 3) -> Adaptive:
    """Select by SIDCo with a memory of its stages; see ``Adaptive``.

    Args:
        fit: distribution of the magnitudes: ``"exponential"``, ``"gamma"`` or ``"pareto"``.
        density: fraction of elements to keep.
        stages: to begin with; more than are of use at this density count as that many.
    """
    return Adaptive(reducer, sidco(fit, density, min(stages, most_stages(density))))
