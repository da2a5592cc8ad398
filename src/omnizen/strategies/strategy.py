"""A strategy is a frozen row: what ranks share, how it is combined, and when. It is never subclassed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from omnizen.errors import LISTS_METHODS, UserError, nearest

SHARES = ("grad", "delta", "params")
MEANS = ("ranks", "steps", "samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way to keep ranks together; ``strategies.sync`` and ``strategies.local_sgd`` make them.

    A row that asks for what is not built is refused when it is made, not when it trains.

    Raises:
        UserError: says which value is not supported, and which is.

    Example:
        >>> Strategy(share="grad", reducer="zen-coo").every
        1
    """

    share: Literal["grad", "delta", "params"] = "grad"
    """What travels: gradients, differences of parameters, or parameters."""
    reducer: str = "auto"
    """Catalogue name or text of what combines it; "auto" lets the planner choose for each tensor (gradients), or is
    the plain average."""
    every: int | tuple[int, ...] | Literal["speed"] = 1
    """Local steps between two exchanges: of all ranks, of each rank, or in proportion to measured speeds."""
    mean: Literal["ranks", "steps", "samples"] = "ranks"
    """What a rank counts for when parameters or differences are averaged."""
    pool: float = 1.0
    """How many samples are drawn for each one of high loss that a slow rank reads; 1 picks none by loss."""
    most: int = 32
    """Local steps of the fastest rank where ``every`` is "speed"."""
    accumulate: int = 1
    """Batches of one local step."""
    weights: tuple[float, ...] = ()
    """What each rank's gradient counts for beside its samples; empty means alike."""
    until_norm: float = 0.0
    """Norm of the average at which all ranks count alike from then on; 0 for never."""
    until_step: int = 0
    """Step from which all ranks count alike; 0 for never."""
    delay: int = 0
    """Steps between the start of an exchange and the use of its result."""
    groups: int | tuple[tuple[int, ...], ...] = 1
    """Compute groups, of ranks that step together: how many, or the ranks of each; 1 is everybody."""
    members: Literal["everyone"] = "everyone"
    """Who takes part in a step."""
    local: None = None
    """What a rank does on its own between exchanges; None is steps of the user's optimizer."""
    outer: None = None
    """What is done with the combined result; None takes it as it is."""

    def __post_init__(self) -> None:
        if self.share not in SHARES:
            raise UserError(f"share: {nearest(self.share, SHARES)}")
        only: dict[str, Any] = {"delay": 0, "members": "everyone", "local": None, "outer": None}
        if self.share == "grad":
            only |= {"every": 1, "mean": "ranks", "pool": 1.0, "accumulate": 1}
        for name, value in only.items():
            given = getattr(self, name)
            if given != value:
                raise UserError(
                    f"a strategy with share={self.share!r} and {name}={given!r} is not supported yet; use "
                    f"{name}={value!r} (see strategies.sync and strategies.local_sgd)"
                )
        self._check_groups()
        self._check_local()
        self._check_weights()
        self._check_reducer()

    def _check_local(self) -> None:
        if self.mean not in MEANS:
            raise UserError(f"mean: {nearest(self.mean, MEANS)}")
        if isinstance(self.every, str):
            if self.every != "speed":
                raise UserError(f"every: {nearest(self.every, ['speed'])} (or give numbers of local steps)")
        else:
            each = self.every if isinstance(self.every, tuple) else (self.every,)
            if not each or not all(_whole(number) for number in each):
                raise UserError(
                    f"every: a whole number of local steps of 1 or more, one for each rank, or 'speed'; got "
                    f"{list(self.every) if isinstance(self.every, tuple) else self.every!r}"
                )
        for name in ("most", "accumulate"):
            if not _whole(getattr(self, name)):
                raise UserError(f"{name}: a whole number of 1 or more, got {getattr(self, name)!r}")
        if not _number(self.pool) or not 1.0 <= self.pool < math.inf:
            raise UserError(
                f"pool: a number of 1 or more (1 draws without regard to losses, 4 picks the quarter of highest "
                f"loss), got {self.pool!r}"
            )

    def _check_weights(self) -> None:
        for weight in self.weights:
            if not _number(weight) or not 0 < weight < math.inf:
                raise UserError(f"weights (or smoothness): numbers above 0, one for each rank, got {weight!r}")
        if not self.weights and (self.until_norm or self.until_step):
            raise UserError("until_norm and until_step end unequal weights, and no weights are given")
        if self.weights and self.share != "grad":
            raise UserError("weights of gradients go with share='grad'; local steps take mean='steps' or 'samples'")
        if not _number(self.until_norm) or not 0 <= self.until_norm < math.inf:
            raise UserError(f"until_norm: a number of 0 or more, got {self.until_norm!r}")
        if self.until_step != 0 and not _whole(self.until_step):
            raise UserError(f"until_step: a whole number of 0 or more, got {self.until_step!r}")

    def _check_reducer(self) -> None:
        if self.reducer == "auto":
            return
        if self.share == "params":
            raise UserError(
                f"share='params' averages whole parameters and has no use for reducer={self.reducer!r}; "
                "share='delta' sends what a round changed through a reducer"
            )
        from omnizen import catalog

        if isinstance(self.reducer, str) and "(" in self.reducer:
            catalog.reducer(self.reducer)
        elif catalog.full_name(self.reducer) not in catalog.REDUCERS:
            raise UserError(
                f"reducer: {nearest(self.reducer, ['auto', *catalog.REDUCERS], listed_by=LISTS_METHODS)}"
            )

    def _check_groups(self) -> None:
        given = self.groups
        if isinstance(given, tuple):
            ranks = [rank for group in given for rank in (group or [None])]
            whole = all(isinstance(r, int) and not isinstance(r, bool) and r >= 0 for r in ranks)
            right = bool(given) and whole and len(set(ranks)) == len(ranks)
        else:
            right = isinstance(given, int) and not isinstance(given, bool) and given >= 1
        if not right:
            raise UserError(f"groups: a number of 1 or more, or each group's ranks, each once; got {given!r}")
        if given != 1 and self.share != "grad":
            raise UserError(f"compute groups share gradients; share={self.share!r} goes with groups=1")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1
