"""Staleness and momentum: Theorem 7's oracle, the laws behind it, and runs of asynchronous descent."""

import heapq
import math

import numpy as np
import pytest

from omnizen.errors import UserError
from omnizen.plan.delays import Order, geometric, implicit_momentum, mean_rates, run_rates, shares
from omnizen.plan.momentum import best, best_of_mean, corrected, curvature_of

# Best explicit momentum and its rate by Theorem 7, for curvatures from 1 to the condition number, to 0.05.
ORACLE = {
    5: {1: (0.20, 0.447), 2: (-0.20, 0.670), 4: (-0.25, 0.822), 8: (-0.30, 0.887)},
    20: {1: (0.45, 0.671), 2: (-0.15, 0.699), 4: (-0.30, 0.855), 8: (-0.35, 0.924)},
}
CASES = [(condition, groups) for condition in ORACLE for groups in ORACLE[condition]]


def finish_order(groups, draw, events, seed):
    """Which group finishes when each begins again at once: a simulation of events."""
    rng = np.random.default_rng(seed)
    heap = [(draw(rng) * (j + 1) / groups if j else draw(rng), j) for j in range(groups)]
    heapq.heapify(heap)
    order = []
    for _ in range(events):
        now, j = heapq.heappop(heap)
        order.append(j)
        heapq.heappush(heap, (now + draw(rng), j))
    return order


def exponential(rng):
    return rng.exponential(1.0)


def nearly_constant(rng):
    return rng.normal(1.0, 0.05)


def staleness_of(order):
    began, counts = {}, np.zeros(200)
    for t, j in enumerate(order):
        if j in began:
            counts[t - began[j]] += 1
        began[j] = t + 1
    return np.trim_zeros(counts, "b")


def steps_of_runs(orders, condition, momentum, step, tolerance=1e-3):
    """Steps after which the root mean square error over runs stays small, for each pair of momentum and step."""
    curvature = np.array([1.0, math.sqrt(condition), condition])
    groups = 1 + max(map(max, orders))
    shape = (len(momentum), len(orders), len(curvature))
    weights, velocity = np.ones(shape), np.zeros(shape)
    read = np.ones((len(orders), groups, len(momentum), len(curvature)))
    mu, lr = momentum[:, None, None], step[:, None, None]
    runs, done = np.arange(len(orders)), np.zeros(len(momentum))
    for t in range(len(orders[0])):
        who = np.array([order[t] for order in orders])
        stale = read[runs, who].transpose(1, 0, 2)
        velocity = mu * velocity - lr * curvature * stale
        weights = np.clip(weights + velocity, -1e9, 1e9)
        read[runs, who] = weights.transpose(1, 0, 2)
        error = np.sqrt((weights**2).mean(axis=1)).max(axis=1)
        done = np.where(error > tolerance, t + 2, done)
    return np.where(done > len(orders[0]), np.inf, done)


@pytest.mark.parametrize(("condition", "groups"), CASES)
def test_rates_of_the_oracle(condition, groups):
    momentum, rate = ORACLE[condition][groups]
    steps = np.geomspace(0.3 / condition, 8 * groups / condition, 400)
    x = np.concatenate([steps, condition * steps])
    rates = mean_rates(1 - 1 / groups, np.full(len(x), momentum), x).reshape(2, -1).max(axis=0)
    assert min(rates) == pytest.approx(rate, abs=1.2e-3)


@pytest.mark.parametrize(("condition", "groups"), CASES)
def test_best_momentum_for_the_mean_from_measured_staleness(condition, groups):
    staleness = staleness_of(finish_order(groups, exponential, 30_000, seed=groups))
    found = best_of_mean(implicit_momentum(staleness), condition)
    assert found.momentum == pytest.approx(ORACLE[condition][groups][0], abs=0.1)


def test_constant_staleness_is_one_polynomial():
    momentum, x = -0.3, 0.2  # w[t+1] = w[t] + momentum (w[t] - w[t-1]) - x w[t-3]
    root = np.abs(np.roots([1, -(1 + momentum), momentum, 0, x])).max()
    assert run_rates(Order(4, 0.0), np.array([momentum]), np.array([x]))[0] == pytest.approx(root, abs=2e-3)


def test_an_order_has_the_staleness_that_it_was_made_of():
    assert Order.of(geometric(4)) == Order(4, pytest.approx(1.0, abs=0.01))
    assert Order(4, 1.0).staleness()[:60] == pytest.approx(np.append(geometric(4), np.zeros(60))[:60], abs=1e-6)
    assert Order.of([0, 0, 0, 7]) == Order(4, 0.0)
    assert Order.of([5]) == Order(1, 0.0)
    lagging = np.zeros(40)
    lagging[2], lagging[22] = 0.95, 0.05  # one of four is seven times slower
    assert Order.of(lagging).skew > 1


def test_staleness_of_exponential_times_is_geometric_and_of_equal_ones_constant():
    drawn = staleness_of(finish_order(4, exponential, 30_000, seed=0))
    assert shares(drawn)[:4] == pytest.approx(geometric(4)[:4], abs=0.01)
    assert implicit_momentum(drawn) == pytest.approx(0.75, abs=0.02)  # Theorem 5: 1 - 1/g
    equal = staleness_of(finish_order(4, nearly_constant, 30_000, seed=0))
    assert shares(equal)[3] > 0.75
    assert implicit_momentum(equal) < 0.3


def test_runs_can_diverge_where_their_mean_converges():
    mean = best_of_mean(0.75, 5)
    x = np.array([mean.step, 5 * mean.step])
    assert run_rates(Order(4, 1.0), np.full(2, mean.momentum), x).max() > 1.5
    orders = [finish_order(4, exponential, 60, seed) for seed in range(8)]
    assert np.isinf(steps_of_runs(orders, 5, np.array([mean.momentum]), np.array([mean.step]))[0])


@pytest.mark.parametrize(("condition", "groups"), [(5, 1), (5, 2), (5, 4), (20, 2), (5, 8)])
@pytest.mark.parametrize("times", [exponential, nearly_constant])
def test_no_swept_setting_needs_clearly_fewer_steps(condition, groups, times):
    events = 250 if condition == 5 else 500
    seeds = range(16 if times is exponential else 4)
    found = best(staleness_of(finish_order(groups, times, 20_000, seed=99)), condition)
    momenta, steps = np.meshgrid(np.arange(-0.9, 0.61, 0.1), np.geomspace(0.3, 3, 15) * found.step)
    settings = np.append(momenta.ravel(), found.momentum), np.append(steps.ravel(), found.step)
    orders = [finish_order(groups, times, events, seed) for seed in seeds]
    taken = steps_of_runs(orders, condition, *settings)
    within = 1.3 if times is exponential else 1.1
    assert taken[-1] <= within * taken.min() + 1


def test_correction_undoes_itself_and_knows_the_scale():
    tuned = curvature_of(0.6, 0.05)
    assert tuned.best([1.0]).momentum == pytest.approx(0.6, abs=1e-6)
    assert tuned.best([1.0]).step == pytest.approx(0.05)
    there = corrected(0.6, 0.05, [1.0], geometric(2))
    assert there.momentum < 0.6
    assert corrected(0.6, 0.5, [1.0], geometric(2)).step == pytest.approx(10 * there.step)
    back = corrected(there.momentum, there.step, geometric(2), [1.0])
    assert back.momentum == pytest.approx(0.6, abs=0.1)


def test_more_staleness_takes_more_steps():
    steps = [best(geometric(g), 20).updates() for g in (1, 2, 4)]
    assert steps == sorted(steps)
    assert best([0, 1], 20).updates() > steps[0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: shares([]), "histogram"),
        (lambda: shares([1, -1]), "histogram"),
        (lambda: shares([0, 0]), "histogram"),
        (lambda: geometric(0), "1 or more groups"),
        (lambda: best([1.0], 0.5), "1 or more"),
        (lambda: run_rates(Order(99, 1.0), np.zeros(1), np.zeros(1)), "up to 16"),
        (lambda: curvature_of(1.0, 0.1), "within -1 and 1"),
        (lambda: curvature_of(0.5, float("nan")), "above 0"),
    ],
)
def test_what_is_refused(make, says):
    with pytest.raises(UserError, match=says):
        make()
