"""How a tuner searches: frozen settings, the authors' constants by default."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from omnizen.errors import UserError, nearest
from omnizen.plan import layouts

Search = Literal["model", "halving", "grid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a tuner may do, and what it knows before the first probe.

    Args:
        workers: ranks.
        search: "halving" gives many points little time and the better half more; "grid" is the paper's; "model"
            probes only near what ``plan/momentum.py`` and the predicted seconds say, for runs too short for more.
        groups: numbers of groups that may be used, from 1 up; by halving the ranks by default.
        update_s: for each of them, the predicted seconds between two updates; () when nothing was predicted.
        momenta: of the grid.
        steps: step sizes of a cold start, largest first.
        sync_momentum: momentum of the first probes with one group, and what the model takes for tuned there.
        probe_s: seconds of a probe.
        overhead: largest share of all seconds that may go to probes whose outcome is not trained on.
        horizon_s: how long the run is expected to last; None is unknown, then a search is paid for by the training
            after it.
        faster: more groups must make updates this share faster to be looked at.
        last: losses at the end of a probe that are averaged.
        near: in steady state, losses this share above the best are as good, and the larger step size is taken.
        blown_up: a probe whose loss grew by this factor has diverged.
        steady: search again after each stretch of training.

    Raises:
        UserError: says what is allowed.
    """

    workers: int
    search: Search = "halving"
    groups: tuple[int, ...] = ()
    update_s: tuple[float, ...] = ()
    momenta: tuple[float, ...] = (0.0, 0.3, 0.6, 0.9)
    steps: tuple[float, ...] = (0.1, 0.01, 0.001, 0.0001)
    sync_momentum: float = 0.9
    probe_s: float = 60.0
    overhead: float = 0.10
    horizon_s: float | None = None
    faster: float = 0.10
    last: int = 10
    near: float = 0.01
    blown_up: float = 3.0
    steady: bool = True

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"workers must be 1 or more, got {self.workers}")
        if self.search not in get_args(Search):
            raise UserError(f"search: {nearest(self.search, get_args(Search))}")
        groups = self.groups or layouts.sizes(self.workers)
        if list(groups) != sorted(set(groups)) or not 1 <= groups[0] <= groups[-1] <= self.workers:
            raise UserError(f"groups must rise from 1 or more to at most {self.workers}, got {groups}")
        object.__setattr__(self, "groups", groups)
        if self.update_s and len(self.update_s) != len(groups):
            raise UserError(f"update_s must name seconds for each of {groups}, got {self.update_s}")
        checks: list[tuple[str, Callable[[float], bool], str]] = [
            ("probe_s", lambda v: v > 0, "above 0"),
            ("overhead", lambda v: 0 < v < 1, "between 0 and 1"),
            ("faster", lambda v: v >= 0, "0 or more"),
            ("last", lambda v: v >= 1, "1 or more"),
            ("near", lambda v: v >= 0, "0 or more"),
            ("blown_up", lambda v: v > 1, "above 1"),
            ("sync_momentum", lambda v: -1 < v < 1, "between -1 and 1"),
        ]
        for name, allowed, words in checks:
            value = getattr(self, name)
            if not math.isfinite(value) or not allowed(value):
                raise UserError(f"{name} must be {words}, got {value}")
        if self.horizon_s is not None and not (math.isfinite(self.horizon_s) and self.horizon_s > 0):
            raise UserError(f"horizon_s must be above 0 or None, got {self.horizon_s}")
        if not self.steps or list(self.steps) != sorted(self.steps, reverse=True) or min(self.steps) <= 0:
            raise UserError(f"steps must fall and stay above 0, got {self.steps}")
        if not self.momenta or not all(-1 < m < 1 for m in self.momenta):
            raise UserError(f"momenta must lie between -1 and 1, got {self.momenta}")
