"""What every kind of comm keeps the same way: steps in errors, names of sub-groups, and what it refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from omnizen.errors import UserError
from omnizen.types import Parts


class HasStep(Protocol):
    """Anything that knows the step it is in."""

    step: int | None


def check_parts(parts: Parts, verb: str) -> None:
    """Refuse what cannot be sent.

    Raises:
        UserError: says what the verb takes.
    """
    found: list[str] = [] if isinstance(parts, list | tuple) else [type(parts).__name__]
    for part in [] if found else parts:
        if not isinstance(part, Tensor) or part.layout != torch.strided:
            found.append(str(getattr(part, "layout", type(part).__name__)))
    if found:
        raise UserError(
            f"{verb} sends lists of strided tensors, got {found[0]}; send a sparse tensor as its indices and values"
        )


class CommBase:
    """Holds a comm's step and the names it gave to sub-groups.

    A sub-group follows the step of its parent until it is given one of its own.
    """

    size: int

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

    def check_exchange(self, out: Mapping[int, Parts], sources: Sequence[int], like: Parts) -> None:
        """Refuse an exchange with ranks that are not there, or of what cannot be sent."""
        self.check_ranks(out, "exchange")
        self.check_ranks(sources, "exchange")
        for parts in (like, *out.values()):
            check_parts(parts, "exchange")

    def check_each(self, parts: Sequence[Parts]) -> None:
        """Refuse an all-to-all without something for each rank."""
        if len(parts) != self.size:
            raise UserError(f"all_to_all needs one entry for each of {self.size} ranks, got {len(parts)}")
        for each in parts:
            check_parts(each, "all_to_all")

    def check_ranks(self, ranks: Iterable[int], what: str) -> None:
        """Refuse ranks that are not in this comm, or are named twice.

        Raises:
            UserError: names the first one.
        """
        seen: set[int] = set()
        for rank in ranks:
            if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.size or rank in seen:
                raise UserError(f"{what}: ranks of {self.name!r} are 0..{self.size - 1}, each once; got {rank!r}")
            seen.add(rank)

    def sub_name(self, name: str) -> str:
        """Return a name for a sub-group that no earlier one had; every rank asks, members or not."""
        self._names[name] += 1
        again = f"#{self._names[name]}" if self._names[name] > 1 else ""
        return f"{self.name}/{name}{again}"
