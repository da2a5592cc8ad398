"""A task that takes no time: asynchronous descent on a noisy quadratic, played event by event."""

import heapq
from dataclasses import dataclass, field

import numpy as np

from omnizen.plan.tuner import Carrier, Done, Result, Train


@dataclass
class State:
    weights: np.ndarray
    velocity: np.ndarray
    drawn: int = 0


@dataclass
class Task:
    """Losses of a quadratic; ``cycle_s`` are the seconds of a cycle of each group by number of groups."""

    cycle_s: dict
    condition: float = 1e4
    noise: float = 0.1
    dims: int = 12
    seed: int = 0
    curvature: np.ndarray = field(init=False)

    def __post_init__(self):
        self.curvature = np.geomspace(10.0 / self.condition, 10.0, self.dims)

    def start(self):
        return State(self.curvature**-0.5, np.zeros(self.dims))

    def loss(self, weights):
        return float((self.curvature * weights**2).mean())

    def run(self, point, seconds, state, target=0.0):
        """Train; returns the result, with ``stop`` when the target was reached, and the state at the end."""
        rng = np.random.default_rng([self.seed, state.drawn])
        weights, velocity = state.weights.copy(), np.zeros(self.dims) if state.drawn == 0 else state.velocity.copy()
        cycle_s = self.cycle_s[point.groups]

        def work(j):
            return cycle_s[j] * (1 + 0.05 * rng.standard_normal())

        groups = len(cycle_s)
        read = [weights] * groups
        began, late = [0] * groups, [0] * 400
        heap = [(work(j) * (j + 1) / groups, j) for j in range(groups)]
        heapq.heapify(heap)
        losses, updates, now = [], 0, 0.0
        while True:
            at, j = heapq.heappop(heap)
            if at > seconds:
                now = seconds
                break
            gradient = self.curvature * read[j] + self.noise * np.sqrt(self.curvature) * rng.standard_normal(
                self.dims
            )
            velocity = point.momentum * velocity - point.step * gradient
            losses.append(self.loss(read[j]))
            late[min(updates - began[j], 399)] += 1
            weights = weights + velocity
            updates += 1
            read[j], began[j] = weights, updates
            heapq.heappush(heap, (at + work(j), j))
            if not np.isfinite(losses[-1]) or losses[-1] > 1e12:
                losses[-1], now = float("nan"), at
                break
            if updates >= 10 and np.mean(losses[-10:]) <= target:
                return Result(at, updates, tuple(losses), tuple(late), stop=True), State(weights, velocity, updates)
        return Result(now, updates, tuple(losses), tuple(late)), State(weights, velocity, state.drawn + updates)


def play(tuner, task, target, most=300, each=None):
    """Carry a tuner's actions out until the target; returns the seconds, or infinity."""

    def train(action, start):
        return task.run(action.point, action.seconds, start, target if isinstance(action, Train) else 0.0)

    carrier, clock = Carrier(tuner, train, task.start()), 0.0
    for _ in range(most):
        result = carrier.step()
        if result is None:
            break
        clock += result.seconds
        if each is not None:
            carrier.tuner = each(carrier.tuner)
    action = carrier.tuner.next()
    return clock if isinstance(action, Done) and action.reason == "training ended" else float("inf")


def fixed(task, point, target, most_s):
    """Seconds to the target with one point."""
    result, _ = task.run(point, most_s, task.start(), target)
    return result.seconds if result.stop else float("inf")
