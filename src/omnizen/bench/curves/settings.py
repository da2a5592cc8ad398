"""Which curves are drawn: each lossy scheme with and without memory, each at its own step size."""

from __future__ import annotations

from omnizen.bench.curves.train import Setting
from omnizen.strategies import Strategy, local_sgd

STEP_SIZES = (0.003, 0.01, 0.03, 0.1)
"""Of which each method takes the best."""
FINE_SIZES = (0.001, 0.002, 0.005, 0.01, 0.02)
"""Of the comparison of detached with plain feedback, which turns on the largest step that each bears."""
WITH = {
    "topk": "topk",
    "randomk": "randomk",
    "random-block": "random-block",
    "dgc": "dgc",
    "sbc": "sbc",
    "stc": "stc",
    "onebit": "onebit",
    "qsgd with feedback": "qsgd(memory=True)",
    "terngrad with feedback": "terngrad(memory=True)",
    "natural with feedback": "natural(memory=True)",
    "wangni with feedback": "feedback(wangni)",
    "ok-topk": "feedback(ok-topk)",
    "hitopkcomm": "hitopkcomm",
    "powersgd": "powersgd",
    "count-sketch": "count-sketch",
    "shared-scale": "shared-scale",
}
"""Curves with error feedback: name to plan."""
WITHOUT = {
    "topk without feedback": "topk(memory=False)",
    "randomk without feedback": "randomk(memory=False)",
    "random-block without feedback": "random-block(memory=False)",
    "dgc without feedback": "selected(top-k, agsparse)",
    "sbc without feedback": "gathered(one-sided)",
    "stc without feedback": "two-way(ternary)",
    "onebit without feedback": "gathered(sign)",
    "qsgd": "qsgd",
    "terngrad": "terngrad",
    "natural": "natural",
    "wangni": "wangni",
    "signsgd": "signsgd",
    "ok-topk without feedback": "ok-topk",
    "powersgd without feedback": "powersgd(memory=False)",
    "count-sketch without feedback": "count-sketch(memory=False)",
    "shared-scale without feedback": "shared-scale(memory=False)",
}
"""Curves without: name to plan."""
VOTED_SIZES = (0.0001, 0.0003, 0.001, 0.003)
"""Of a vote, whose steps have one size."""
OWN_MOMENTUM = ("dgc", "sbc")
"""Schemes that keep momentum themselves."""
DETACHED = {
    f"block 1/64 detached {share:g}": f"def-random-block(density={1 / 64}, detached={share:g})"
    for share in (0.0, 0.3, 1.0)
}
"""Local momentum before random blocks at 1/64: ordinary feedback, the authors' choice, and a whole step ahead."""

DELAYED = {
    f"{name} after {every} local steps": local_sgd(every, share="delta", reducer=reducer)
    for name, reducer in (("dense", "auto"), ("sbc", "sbc"))
    for every in (5, 15)
}
"""Differences of several local steps: whole, and by sparse binary compression with its delay."""


def settings_of(name: str) -> list[Setting]:
    """Return one setting for each step size that a curve may take."""
    plans: dict[str, str | Strategy] = {"dense": "dense"} | WITH | WITHOUT | DETACHED | DELAYED
    own = name in OWN_MOMENTUM or name in DETACHED
    sizes = FINE_SIZES if name in DETACHED else VOTED_SIZES if name == "signsgd" else STEP_SIZES
    return [Setting(method=name, plan=plans[name], lr=lr, momentum=0.0 if own else 0.9) for lr in sizes]


def names(chosen: list[str]) -> list[str]:
    """Return the curves to draw: those chosen, or all; raises ``UserError`` for an unknown one."""
    from omnizen.errors import UserError, nearest

    everything = ["dense", *WITH, *WITHOUT, *DETACHED, *DELAYED]
    for name in chosen:
        if name not in everything:
            raise UserError(f"curve: {nearest(name, everything)}")
    return chosen or everything
