"""What a user may set about tuning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from omnizen.errors import UserError, nearest
from omnizen.plan.tuner.settings import Search, Settings

SEARCH_SHARE = 0.5
"""Of the seconds that tuning may take, the search's; the others are for prices."""
PROBES = 6
"""So many whole probes fit into the search's seconds by default."""
MOST_PROBE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings:
    """How long to look, and for how long a training.

    Args:
        search: "halving", "model" or "grid".
        probe_s: seconds of a probe; by default what ``horizon_s`` and ``overhead`` allow, at most a minute.
        horizon_s: seconds that the training is expected to last.
        overhead: share of these that searching and probing prices may take.
        train: go on training up to the horizon.
        measure_s: seconds of measuring devices, links and the model.
        save_every_s: while training, weights are written so often.
        seed: of the order of samples.

    Raises:
        UserError: says what is allowed.
    """

    search: str = "halving"
    probe_s: float | None = None
    horizon_s: float = 3600.0
    overhead: float = 0.10
    train: bool = False
    measure_s: float = 10.0
    save_every_s: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.search not in get_args(Search):
            raise UserError(f"search: {nearest(self.search, get_args(Search))}")
        if not 0 < self.overhead < 1:
            raise UserError(f"overhead must be between 0 and 1, got {self.overhead}")
        for name in ("probe_s", "horizon_s", "measure_s", "save_every_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UserError(f"{name} must be above 0, got {value}")
        if self.probe_s is not None and self.probe_s > self.allowed_s:
            raise UserError(
                f"one probe of {self.probe_s:g} s is more than the {self.allowed_s:g} s that tuning may take "
                f"({self.overhead:.0%} of {self.horizon_s:g} s); ask for shorter probes or a longer horizon"
            )

    @property
    def allowed_s(self) -> float:
        """Seconds that tuning may take."""
        return self.overhead * self.horizon_s

    @property
    def probe_seconds(self) -> float:
        """Seconds of a probe."""
        return self.probe_s or min(MOST_PROBE_S, SEARCH_SHARE * self.allowed_s / PROBES)


def compare_searches(saved: Settings, asked: Settings, folder: Path) -> None:
    """Refuse to go on with a search that was begun otherwise.

    Raises:
        UserError: names what differs.
    """
    differing: list[Any] = [
        (name, getattr(saved, name), getattr(asked, name))
        for name in ("search", "probe_s", "overhead", "horizon_s", "steps")
        if getattr(saved, name) != getattr(asked, name)
    ]
    if differing:
        words = "; ".join(f"{name} {was}, not {now}" for name, was, now in differing)
        raise UserError(f"{folder} holds a search with {words}; ask for the same, or give another folder")
