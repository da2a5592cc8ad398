"""What every kind of comm keeps the same way: the step that errors name, and the names of its sub-groups."""

from __future__ import annotations

from collections import Counter
from typing import Protocol


class HasStep(Protocol):
    """Anything that knows the step it is in."""

    step: int | None


class CommBase:
    """Holds a comm's step and the names it gave to sub-groups.

    A sub-group follows the step of its parent until it is given one of its own.
    """

    def __init__(self, name: str, parent: HasStep | None = None) -> None:
        self.name = name
        self._parent = parent
        self._step: int | None = None
        self._names: Counter[str] = Counter()

    @property
    def step(self) -> int | None:
        """Step to name in errors."""
        if self._step is None and self._parent is not None:
            return self._parent.step
        return self._step

    @step.setter
    def step(self, step: int | None) -> None:
        self._step = step

    def sub_name(self, name: str) -> str:
        """Return a name for a sub-group that no earlier one had; every rank asks, members or not."""
        self._names[name] += 1
        again = f"#{self._names[name]}" if self._names[name] > 1 else ""
        return f"{self.name}/{name}{again}"
