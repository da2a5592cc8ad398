"""Spot values computed by hand from the formulas of Zen (Wang et al., OSDI 2025)."""

import math

import pytest

from omnizen.errors import UserError
from omnizen.measure.facts import LinkFacts
from omnizen.plan.cost import Rates, predict
from omnizen.plan.links import LinkModel
from omnizen.types import Sparsity
from tests.plan.builders import MBIT, independent

BIG = (10_000_000, 1)


def seconds(scheme, pattern, size, **rates):
    """Predict with 1 byte a second and no latency: the bytes of the formula."""
    return predict(scheme, pattern, size, LinkModel.uniform(size, 1.0), Rates(**rates)).seconds


def pattern_of(size, density):
    return independent(size, density, shape=BIG).sparsity()


def crossing(difference, low, high):
    """Return where a rising function passes zero."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if difference(middle) < 0 else (low, middle)
    return low


@pytest.mark.parametrize(("size", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75), (5, 1.6)])
def test_dense_ring(size, factor):
    pattern = Sparsity(1_000_000, 1, 1.0)
    assert seconds("dense", pattern, size) == pytest.approx(factor * 4_000_000)


def test_all_gather_and_recursive_doubling_and_balanced_parallelism():
    pattern = Sparsity(10_000_000, 1, 0.1, {1: 1.0, 2: 1.5, 4: 2.5})
    own = 2 * 0.1 * 40_000_000  # value and index of each element that a worker has
    assert seconds("agsparse", pattern, 4) == pytest.approx(3 * own, rel=1e-4)
    assert seconds("sparcml", pattern, 4) == pytest.approx((1 + 1.5) * own, rel=1e-4)
    assert seconds("zen-coo", pattern, 4) == pytest.approx(3 / 4 * (1 + 2.5) * own, rel=1e-4)
    bitmap = 3 / 4 * (own + 2.5 * own / 2 + 10_000_000 / 8)
    assert seconds("zen-bitmap", pattern, 4) == pytest.approx(bitmap, rel=1e-4)


def test_wide_rows_make_the_index_cheap():
    pattern = Sparsity(50_000, 64, 0.1, {1: 1.0, 2: 2.0})
    own = (1 + 4 / (4 * 64)) * 0.1 * 50_000 * 64 * 4
    assert seconds("agsparse", pattern, 2) == pytest.approx(own, rel=1e-4)


@pytest.mark.parametrize(("size", "overlap"), [(4, 0.274), (8, 0.058), (16, 0.013)])
def test_balanced_parallelism_beats_recursive_doubling_from_this_overlap_on(size, overlap):
    def gain(density):
        pattern = pattern_of(size, density)
        return seconds("sparcml", pattern, size) - seconds("zen-coo", pattern, size)

    # Beyond 0.29 two workers' sum is more than half of the tensor, and recursive doubling sends it whole.
    assert crossing(gain, 0.001, 0.29) == pytest.approx(overlap, abs=0.0015)


@pytest.mark.parametrize(("size", "density"), [(4, 0.276), (8, 0.188), (16, 0.123)])
def test_balanced_parallelism_breaks_even_with_dense_at_this_density(size, density):
    def loss(d):
        pattern = pattern_of(size, d)
        return seconds("zen-coo", pattern, size) - seconds("dense", pattern, size)

    assert crossing(loss, 0.001, 0.9) == pytest.approx(density, abs=0.0015)


@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_with_a_bitmap_it_breaks_even_at_about_half(size):
    def loss(d):
        pattern = pattern_of(size, d)
        return seconds("zen-bitmap", pattern, size) - seconds("dense", pattern, size)

    assert 0.475 <= crossing(loss, 0.001, 0.9) <= 0.515


def test_full_overlap_favours_balanced_parallelism_by_the_known_factor():
    for size, factor in [(4, 1.33), (8, 1.71), (16, 2.13)]:
        pattern = Sparsity(10_000_000, 1, 0.1, dict.fromkeys((1, 2, 4, 8, 16), 1.0))
        gain = seconds("sparcml", pattern, size) / seconds("zen-coo", pattern, size)
        assert gain == pytest.approx(factor, abs=0.01)


def test_one_worker_costs_nothing():
    assert predict("dense", Sparsity(100, 1, 1.0), 1, LinkModel.uniform(1, 1.0)).seconds == 0.0


def test_rounds_pay_the_latency():
    cost = predict("dense", Sparsity(4, 1, 1.0), 4, LinkModel.uniform(4, math.inf, latency_s=0.01))
    assert (cost.seconds, cost.latency_s) == (pytest.approx(0.06), pytest.approx(0.06))


def test_the_processor_pays_for_what_a_scheme_merges():
    pattern = Sparsity(100_000, 200, 0.01, {1: 1.0, 2: 1.9, 4: 3.5, 8: 6.0})
    row_bytes = 200 * 4 + 8
    links = LinkModel.uniform(8, math.inf)
    merged = {
        s: predict(s, pattern, 8, links, 1e9).cpu_s * 1e9 / row_bytes for s in ("agsparse", "sparcml", "zen-coo")
    }
    assert merged["agsparse"] == pytest.approx(8 * 1000)
    assert merged["sparcml"] == pytest.approx(2 * (1 + 1.9 + 3.5) * 1000)
    assert merged["zen-coo"] == pytest.approx((1 + 6) * 1000)


def test_narrow_rows_are_bound_by_their_number():
    pattern = Sparsity(1_000_000, 1, 0.1, {1: 1.0, 2: 1.9})
    cost = predict("agsparse", pattern, 2, LinkModel.uniform(2, math.inf), Rates(1e12, merge_rows_per_s=1e6))
    assert cost.cpu_s == pytest.approx(0.2)


def test_an_unknown_scheme_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'dense'"):
        predict("dens", Sparsity(4, 1, 1.0), 2, LinkModel.uniform(2, 1.0))


def pairs(size, rate, delay=lambda a, b: 0.001):
    return [
        LinkFacts(source=a, dest=b, latency_s=delay(a, b), bandwidth_bytes_per_s=rate(a, b))
        for a in range(size)
        for b in range(size)
        if a != b
    ]


def test_one_slow_worker_slows_every_scheme():
    model = LinkModel.of(pairs(4, lambda a, b: 100 * MBIT if 3 in (a, b) else 1000 * MBIT), 4)
    for rate in (model.ring_bytes_per_s, model.spread_bytes_per_s, model.slowest_bytes_per_s):
        assert rate == pytest.approx(100 * MBIT)


def test_a_slow_upload_counts_though_downloads_are_fast():
    model = LinkModel.of(pairs(3, lambda a, b: 10 * MBIT if a == 1 else 100 * MBIT), 3)
    assert model.spread_bytes_per_s == pytest.approx(10 * MBIT)


def test_one_slow_pair_hurts_a_ring_that_uses_it_more_than_spread_traffic():
    model = LinkModel.of(pairs(4, lambda a, b: 10.0 if (a, b) == (0, 1) else 100.0), 4)
    assert model.ring_bytes_per_s == 10.0
    assert model.spread_bytes_per_s == pytest.approx(3 / (1 / 10 + 2 / 100))
    assert LinkModel.of(pairs(4, lambda a, b: 10.0 if (a, b) == (0, 2) else 100.0), 4).ring_bytes_per_s == 100.0


def test_a_disturbed_measurement_of_one_pair_is_not_a_slow_link():
    noisy = LinkModel.of(pairs(4, lambda a, b: 80.0 if (a, b) == (1, 2) else 100.0), 4)
    assert noisy == LinkModel.uniform(4, 100.0, 0.001)
    slow = LinkModel.of(pairs(4, lambda a, b: 70.0 if (a, b) == (1, 2) else 100.0), 4)
    assert slow.slowest_bytes_per_s == slow.ring_bytes_per_s == 70.0


def test_latency_is_that_of_the_farthest_rank_and_forgives_one_noisy_pair():
    far = LinkModel.of(pairs(4, lambda a, b: 1.0, lambda a, b: 0.05 if 2 in (a, b) else 0.001), 4)
    assert far.latency_s == pytest.approx(0.05)
    noisy = LinkModel.of(pairs(4, lambda a, b: 1.0, lambda a, b: 0.05 if (a, b) == (0, 1) else 0.001), 4)
    assert noisy.latency_s == pytest.approx(0.001)


def test_a_missing_link_is_named():
    links = [link for link in pairs(3, lambda a, b: 1.0) if (link.source, link.dest) != (2, 0)]
    with pytest.raises(UserError, match="no link from rank 2 to rank 0"):
        LinkModel.of(links, 3)
