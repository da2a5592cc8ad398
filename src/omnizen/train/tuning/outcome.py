"""What tuning came to."""

from __future__ import annotations

from dataclasses import dataclass

from omnizen.measure.facts import Facts
from omnizen.plan.plan import Plan
from omnizen.plan.tuner import Point


class Interrupted(Exception):
    """Somebody asked for the end; what was done is written down."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What tuning came to.

    Args:
        plan: with momentum and step size in its ``execution``; None where it was interrupted before there was one.
        point: what the search chose by time; None before it chose.
        interrupted: the same call goes on where it ended.
        tuned_s: seconds of all probes.
        share: of the horizon that these took.
    """

    facts: Facts
    plan: Plan | None
    point: Point | None
    interrupted: bool
    tuned_s: float
    share: float
