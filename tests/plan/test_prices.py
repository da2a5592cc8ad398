"""Prices from curves whose ratio is known."""

import math

import numpy as np
import pytest

from omnizen.plan.prices import Compared, compare, price


def curve(pace, *, updates=300, samples=8, noise=0.0, seed=0, floor=0.0):
    drawn = np.random.default_rng(seed)
    at = np.arange(updates) * samples
    losses = floor + np.exp(-at / pace) * 3 + noise * drawn.standard_normal(updates)
    return [(samples, float(loss)) for loss in losses]


@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.3, 2.5])
def test_the_ratio_of_exact_curves(ratio):
    assert compare(curve(1500.0), curve(1500.0 * ratio)).ratio == pytest.approx(ratio, rel=0.03)


@pytest.mark.parametrize(("ratio", "samples"), [(1.0, 4), (1.5, 4), (2.0, 16)])
def test_the_ratio_of_noisy_curves_with_other_batches_and_lengths(ratio, samples):
    found = [
        compare(
            curve(1500.0, noise=0.3, seed=n),
            curve(1500.0 * ratio, noise=0.5, seed=100 + n, samples=samples, updates=6000 // samples),
        ).ratio
        for n in range(5)
    ]
    assert price("local", [Compared(r) for r in found], local_steps=4.0).samples == pytest.approx(ratio, rel=0.15)


def test_one_that_learns_ten_times_slower_has_a_lower_bound_and_no_price():
    found = compare(curve(1000.0), curve(30_000.0))
    assert found.ratio is None
    assert 5 < found.at_least < 30
    assert "never came to the loss of plain synchronous training: 2.8" in found.reason
    assert "costs at least" in price("groups", [Compared(1.1), found], groups=2)


@pytest.mark.parametrize(
    ("plain", "other", "says"),
    [
        (curve(1e3), [(8, math.nan)], "diverged: the loss of the strategy was no number"),
        ([(8, math.inf)], curve(1e3), "diverged: the loss of plain synchronous training"),
        (curve(1e3, updates=5), curve(1e3), "too few updates to compare: 5 and 300"),
        ([], curve(1e3), "too few updates"),
        (curve(1e9, noise=0.3), curve(1e3), "learnt too little"),
        (curve(1e3), [(8, 3.0 + 0.01 * n) for n in range(300)], "never came to the loss"),
    ],
)
def test_what_cannot_be_compared_says_why(plain, other, says):
    found = compare(plain, other)
    assert found.ratio is None
    assert says in found.reason


def test_a_price_holds_median_and_spread():
    found = price("groups", [Compared(r) for r in (1.0, 1.2, 2.0)], groups=4, momentum=0.2, lr=0.05)
    assert (found.samples, found.probes, found.momentum, found.lr) == (1.2, 3, 0.2, 0.05)
    assert found.low == pytest.approx(1.08)
    assert found.high == pytest.approx(1.68)
    assert price("groups", [], groups=2) == "not probed"
