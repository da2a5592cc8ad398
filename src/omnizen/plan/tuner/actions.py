"""What a tuner asks for, and what it is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from omnizen.errors import UserError


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One way to train.

    Args:
        groups: compute groups, 1 is synchronous.
        step: step size (lr).
        momentum: explicit momentum, may be negative.
    """

    groups: int
    step: float
    momentum: float

    def __str__(self) -> str:
        return f"{self.groups} groups, lr {self.step:.3g}, momentum {self.momentum:.2f}"


@dataclass(frozen=True, slots=True)
class Probe:
    """Train a little to see how it goes, and keep the state at its end until ``Tuner.kept`` lets it go.

    Args:
        number: counts from 0.
        seconds: how long.
        start: number of the probe at whose end it goes on; None is the last checkpoint.
    """

    number: int
    point: Point
    seconds: float
    start: int | None = None


@dataclass(frozen=True, slots=True)
class Train:
    """Train in earnest; the state at its end is the next checkpoint, unless the losses became infinite.

    Args:
        seconds: how long.
        start: number of the probe at whose end it goes on; None is the last checkpoint.
    """

    point: Point
    seconds: float
    start: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more to do."""

    reason: str


Action = Probe | Train | Done


@dataclass(frozen=True, slots=True)
class Result:
    """How a probe or a stretch of training went.

    Args:
        seconds: how long it took.
        updates: updates of the shared weights in that time.
        losses: of each update or of some, in order; NaN and infinity say that it diverged.
        staleness: by how many updates gradients were late, counts from 0 on; () when not counted.
        error: why it could not be carried out, in words.
        stop: training is over: the target is reached, or the user wants no more.
    """

    seconds: float
    updates: int
    losses: tuple[float, ...] = ()
    staleness: tuple[int, ...] = ()
    error: str = ""
    stop: bool = False

    @property
    def update_s(self) -> float:
        """Seconds between two updates; infinite without any."""
        return self.seconds / self.updates if self.updates else math.inf

    def blew_up(self, last: int, factor: float) -> bool:
        """Return whether the mean of the last losses is so many times the first one."""
        return bool(self.losses) and self.score(last) > factor * abs(self.losses[0])

    def score(self, last: int) -> float:
        """Return the mean of the last losses; infinite when it diverged, failed or has none."""
        finite = all(math.isfinite(loss) for loss in self.losses)
        if self.error or not self.losses or not finite:
            return math.inf
        tail = self.losses[-last:]
        return math.fsum(tail) / len(tail)


def action_to_dict(action: Action) -> dict[str, Any]:
    """Return a table of plain values."""
    return {"kind": type(action).__name__.lower(), **asdict(action)}


def result_to_dict(result: Result) -> dict[str, Any]:
    """Return a table of plain values; losses that are no numbers become null."""
    table = asdict(result)
    table["losses"] = [loss if math.isfinite(loss) else None for loss in result.losses]
    return table


def result_from_dict(table: Mapping[str, Any]) -> Result:
    """Read what ``result_to_dict`` made.

    Raises:
        UserError: a key is missing or unknown.
    """
    try:
        losses = tuple(math.nan if loss is None else float(loss) for loss in table["losses"])
        return Result(**{**table, "losses": losses, "staleness": tuple(table["staleness"])})
    except (KeyError, TypeError) as error:
        raise UserError(f"a result of a tuner cannot be read: {error}") from error
