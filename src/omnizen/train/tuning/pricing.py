"""Prices by probes: each strategy that might pay, beside plain synchronous training from the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from omnizen.measure.facts import PriceFacts
from omnizen.plan.executions import priced_as
from omnizen.plan.layouts import Layout
from omnizen.plan.momentum import corrected
from omnizen.plan.plan import Execution, Plan
from omnizen.plan.prices import Compared, Curve, compare, price
from omnizen.plan.tuner import Point, Trial, Tuner
from omnizen.plan.tuner.guess import staleness_of
from omnizen.train.tuning.stretch import Stretch, Way

WORTH = 0.95
"""What would take more than this share of the planned time even at a price of 1 is not probed."""
MOST = 3
"""Strategies that are probed at most."""
ROUNDS = 3
"""Repetitions, fewer where seconds do not allow them."""
LEAST_UPDATES = 40
"""Of plain synchronous training in a probe of a price."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy whose price is asked for, at its own setting."""

    execution: Execution
    point: Point

    @property
    def way(self) -> Way:
        """How it is trained."""
        e = self.execution
        return Way(Layout(tuple(map(tuple, e.groups)), tuple(e.batch_shares)), tuple(e.local_steps))

    @property
    def key(self) -> tuple[str, int, float]:
        """What prices tell apart."""
        return priced_as(self.execution)[:3]


@dataclass(slots=True)
class Ledger:
    """What was probed so far; written between rounds.

    Args:
        seconds: of all probes of prices.
        found: comparisons by strategy.
        done: nothing more is to be probed.
    """

    seconds: float = 0.0
    done: bool = False
    rounds: int = 0
    found: dict[str, list[Compared]] = field(default_factory=dict)
    notes: list[tuple[str, str, float | None, list[float]]] = field(default_factory=list)

    def to_table(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Ledger:
        """Read what ``to_table`` made."""
        found = {key: [Compared(**each) for each in compared] for key, compared in table["found"].items()}
        return cls(table["seconds"], table["done"], table["rounds"], found, [tuple(n) for n in table["notes"]])


def best_of(tuner: Tuner, groups: int) -> Trial | None:
    """Return the trial with the lowest loss at a number of groups."""
    good = [t for t in tuner.trials if not t.reason and t.point.groups == groups]
    return min(good, key=lambda t: t.score, default=None)


def setting_of(tuner: Tuner, groups: int) -> Point:
    """Return the best setting that was probed at a number of groups, or what others say by their staleness."""
    found = best_of(tuner, groups)
    if found is not None:
        return found.point
    known = min((t for t in tuner.trials if not t.reason), key=lambda t: t.score)
    at = known.point
    guess = corrected(at.momentum, at.step, staleness_of(at.groups, known.result.staleness), staleness_of(groups))
    return Point(groups, guess.step, round(guess.momentum, 2))


def candidates(plan: Plan, tuner: Tuner, *, divisible: bool) -> list[Candidate]:
    """Return the strategies that would pay if they took no more samples, best first."""
    assert plan.execution is not None
    limit = WORTH * plan.execution.relative
    found: dict[tuple[str, int, float], Candidate] = {}
    for e in plan.alternatives:
        if e.price is not None or e.compression or e.strategy == "sync" or e.relative > limit:
            continue
        if not divisible and len(set(e.batch_shares)) > 1:
            continue
        groups = len(e.groups) if e.strategy == "groups" else 1
        each = Candidate(e, setting_of(tuner, groups))
        found.setdefault(each.key, each)
    return list(found.values())[:MOST]


def lengths(allowed_s: float, probe_s: float, least_s: float, count: int) -> tuple[int, int, float] | None:
    """Return rounds, strategies and seconds of a probe that fit into the seconds allowed; None if nothing does."""
    for rounds in range(ROUNDS, 0, -1):
        for strategies in range(count, 0, -1):
            each = min(probe_s, allowed_s / (rounds * (1 + strategies)))
            if each >= least_s:
                return rounds, strategies, each
    return None


def one_round(
    wanted: Sequence[Candidate],
    plain: tuple[Way, Point],
    stretch: Callable[[Way, Point], Stretch],
    ledger: Ledger,
) -> bool:
    """Probe each strategy once beside plain synchronous training; returns whether it was carried out to its end."""
    base = stretch(*plain)
    seconds, compared = base.seconds, []
    for each in wanted:
        if any(c.ratio is None for c in ledger.found.get(str(each.key), [])):
            continue
        probe = base if base.interrupted else stretch(each.way, each.point)
        if probe.interrupted:
            return False
        seconds += probe.seconds
        found = compare(_curve(base), _curve(probe))
        if probe.error or base.error:
            found = Compared(None, reason=f"failed: {probe.error or base.error}")
        compared.append((each, probe, found))
    for each, probe, found in compared:
        ledger.found.setdefault(str(each.key), []).append(found)
        losses = [u.loss for u in probe.updates]
        score = probe.result().score(10)
        said = f"{each.way.title}, lr {each.point.step:.3g}, momentum {each.point.momentum:.2f}: "
        text = f"{found.ratio:.3g} times the samples" if found.ratio is not None else found.reason
        ledger.notes.append(
            (
                "probed" if found.ratio is not None else "rejected",
                said + text,
                score if score < 1e300 else None,
                losses,
            )
        )
    ledger.seconds += seconds
    ledger.rounds += 1
    return True


def prices(wanted: Sequence[Candidate], ledger: Ledger) -> list[PriceFacts]:
    """Return the prices that could be measured, and note why others could not."""
    out = []
    for each in wanted:
        strategy, groups, steps = each.key
        made = price(
            strategy,  # type: ignore[arg-type]
            ledger.found.get(str(each.key), []),
            groups=groups,
            local_steps=steps,
            momentum=each.point.momentum,
            lr=each.point.step,
        )
        if isinstance(made, PriceFacts):
            out.append(made)
            spread = f"{made.low:.2f} to {made.high:.2f} in {made.probes} probes"
            ledger.notes.append(
                ("chose", f"{each.way.title}: {made.samples:.2f} times the samples ({spread})", None, [])
            )
        elif made == "not probed":
            ledger.notes.append(
                ("skipped", f"{each.way.title}: not probed, the seconds did not allow it", None, [])
            )
    return out


def _curve(stretch: Stretch) -> Curve:
    return [(float(u.samples), u.loss) for u in stretch.updates]
