"""Looks after a planned run: when step times change, links are measured and the plan is made anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import torch

from omnizen.measure.facts import Facts, StepFacts
from omnizen.measure.links import measure_links, measure_meetings
from omnizen.measure.texts import gather_texts
from omnizen.plan.departure import Expectation, Look, affordable, middle_and_spread
from omnizen.plan.plan import Plan
from omnizen.plan.search import make_plan
from omnizen.plan.share import share_plan
from omnizen.train import auto
from omnizen.train.sync import Engine, Round

EVERY = 25
"""Steps between two looks, each of which costs one small all-gather."""


@dataclass(slots=True)
class Lookout:
    """Compares steps with those before, all ranks together every some steps.

    Args:
        follow: makes the run follow a plan made anew; called on all ranks after the same step.
        note: writes something down for the reader of the run.
        lazy: tables that a plan may have pulled lazily.
        clock: seconds of the run, on this rank.
    """

    engine: Engine
    follow: Callable[[Plan, Facts, float], None]
    note: Callable[[str], None]
    lazy: Container[str] = frozenset()
    clock: Callable[[], float] = time.monotonic
    replanned: int = 0
    _began_s: float = field(init=False)
    _spent_s: float = 0.0
    _expected: Expectation | None = None
    _plan: Plan | None = None
    _facts: Facts | None = None
    _last: Round | None = None
    _steps: list[tuple[float, float]] = field(default_factory=list)
    _told: bool = False
    _said: bool = False

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self.engine.observers.append(self.round)

    def expect(self, plan: Plan, facts: Facts | None) -> None:
        """From now on, compare with what this plan says."""
        self._plan, self._facts = plan, facts
        self._expected = Expectation(plan.prediction.step_s)
        self._last, self._told, self._said = None, False, False
        self._steps.clear()

    def round(self, done: Round) -> None:
        """Note one synchronised backward; look every some of them."""
        if self._expected is None:
            return
        if self._last is not None:
            compute_s = done.backward_ended_s - self._last.ended_s
            self._steps.append((done.ended_s - self._last.ended_s, compute_s))
        self._last = done
        if len(self._steps) == EVERY:
            self._look(self._expected)

    def _look(self, expected: Expectation) -> None:
        step_s, spread_s = middle_and_spread([step for step, _ in self._steps])
        compute_s, _ = middle_and_spread([compute for _, compute in self._steps])
        self._steps.clear()
        mine = [step_s, spread_s, compute_s, self.clock() - self._began_s, self._spent_s]
        everyone = self.engine.call(lambda: self._gather(mine))
        elapsed_s, spent_s = everyone[0][3:]  # rank 0's clock decides for all
        look = Look(
            max(each[0] for each in everyone),
            max(each[1] for each in everyone),
            tuple(each[2] for each in everyone),
        )
        changed = expected.tell(look)
        if not self._told and (words := expected.first_words()):
            self.note(words)
        self._told = True
        if changed is None or self._facts is None:
            return
        cost_s = spent_s / self.replanned if self.replanned else auto.LINKS_BUDGET_S + 1.0
        if not affordable(cost_s, spent_s, elapsed_s):
            if not self._said:
                self.note(f"{changed}; measuring anew would take more than its share of the run's time so far")
            self._said = True
            return
        self._replan(changed, look, self._facts)

    def _gather(self, mine: list[float]) -> list[list[float]]:
        control = self.engine.control
        own = torch.tensor(mine, dtype=torch.float64, device=control.device)
        return [part.tolist() for (part,) in control.all_gather([own]).wait()]

    def _replan(self, changed: str, look: Look, facts: Facts) -> None:
        began_s = self.clock()
        before = self._plan
        found, plan = self.engine.call(lambda: self._remake(look, facts))
        took_s = self.clock() - began_s
        self._spent_s += took_s
        self.replanned += 1
        same = before is not None and [t.scheme for t in before.tensors] == [t.scheme for t in plan.tensors]
        what = "the plan stays as it was" if same else "another plan is in force"
        self.note(f"{changed}; links were measured anew and {what} from this step on ({took_s:.1f} s)")
        self.follow(plan, found, 0.0)
        self.expect(plan, found)

    def _remake(self, look: Look, facts: Facts) -> tuple[Facts, Plan]:
        """Measure links and plan (in the wire thread, on all ranks)."""
        gradients, control = self.engine.gradients, self.engine.control
        links = measure_links(gradients, auto.LINKS_BUDGET_S)
        meetings = measure_meetings(gradients)
        step = facts.step
        if step is not None and step.compute_s:
            compute_s = max(look.compute_s)
            backward_s = step.backward_s * compute_s / step.compute_s
            step = StepFacts(compute_s=compute_s, backward_s=backward_s, samples=step.samples)
        found = facts.model_copy(update={"links": links, "meetings": meetings, "step": step})
        found = Facts.from_toml(gather_texts(control, found.to_toml())[0])
        plan = make_plan(found, lazy=self.lazy)
        if self._plan is not None:  # shares of the batch stay, and so does what was weighed beside
            kept = {"execution": self._plan.execution, "alternatives": self._plan.alternatives}
            plan = plan.model_copy(update=kept)
        return found, share_plan(plan if control.rank == 0 else None, control)
