"""Omnizen trains one PyTorch model across whatever machines you have, as fast as those machines allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnizen._version import __version__

if TYPE_CHECKING:
    from omnizen import strategies
    from omnizen.plan.batch_control import BatchLaw
    from omnizen.plan.open_loop import shares_from
    from omnizen.train.cores import pin_cores
    from omnizen.train.ddp_hook import ddp_hook
    from omnizen.train.init import init
    from omnizen.train.run import Run

_ROOMS = {
    "BatchLaw": "omnizen.plan.batch_control",
    "Run": "omnizen.train.run",
    "ddp_hook": "omnizen.train.ddp_hook",
    "init": "omnizen.train.init",
    "pin_cores": "omnizen.train.cores",
    "shares_from": "omnizen.plan.open_loop",
}
"""Where the names live that load torch; they are imported when first asked for."""


def __getattr__(name: str) -> Any:
    import importlib

    if name == "strategies":
        return importlib.import_module("omnizen.strategies")
    if name not in _ROOMS:
        raise AttributeError(f"module 'omnizen' has no attribute {name!r}")
    return getattr(importlib.import_module(_ROOMS[name]), name)


__all__ = ["BatchLaw", "Run", "__version__", "ddp_hook", "init", "pin_cores", "shares_from", "strategies"]
