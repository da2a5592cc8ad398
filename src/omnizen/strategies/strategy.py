"""A strategy is a frozen row: what ranks share, how it is combined, and when. It is never subclassed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omnizen.errors import LISTS_METHODS, UserError, nearest

SHARES = ("grad", "delta", "params")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way to keep ranks together.

    This release trains synchronously: gradients are shared in every step, by everyone, at once. A row that asks for
    more is refused when it is made, not when it trains.

    Raises:
        UserError: says which value is not supported, and which is.

    Example:
        >>> Strategy(share="grad", reducer="zen-coo").every
        1
    """

    share: Literal["grad", "delta", "params"] = "grad"
    """What travels: gradients, differences of parameters, or parameters."""
    reducer: str = "auto"
    """Catalogue name of what combines sparse tables; "auto" lets the planner choose for each tensor."""
    every: int = 1
    """Local steps between two exchanges."""
    delay: int = 0
    """Steps between the start of an exchange and the use of its result."""
    members: Literal["everyone"] = "everyone"
    """Who takes part in a step."""
    local: None = None
    """What a rank does on its own between exchanges; None is one step of the user's optimizer."""
    outer: None = None
    """What is done with the combined result; None hands it to the user's optimizer."""

    def __post_init__(self) -> None:
        if self.share not in SHARES:
            raise UserError(f"share: {nearest(self.share, SHARES)}")
        only = {"share": "grad", "every": 1, "delay": 0, "members": "everyone", "local": None, "outer": None}
        for name, value in only.items():
            given = getattr(self, name)
            if given != value:
                raise UserError(
                    f"a strategy with {name}={given!r} is not supported yet; this release trains with "
                    f"{name}={value!r} (see strategies.sync)"
                )
        if self.reducer != "auto":
            from omnizen import catalog

            if self.reducer not in catalog.REDUCERS:
                raise UserError(
                    f"reducer: {nearest(self.reducer, ['auto', *catalog.REDUCERS], listed_by=LISTS_METHODS)}"
                )
