"""Selectors that draw: what is drawn is even, or has the probabilities of the paper."""

import pytest
import torch

from omnizen.errors import UserError
from omnizen.protocols import SharedSelector
from omnizen.selectors.random_block import random_block
from omnizen.selectors.random_k import random_k
from omnizen.selectors.top_k import top_k
from omnizen.selectors.wangni import exact_cut, greedy_cut, wangni
from omnizen.types import Step


def steps(count):
    return [Step(n, shared_seed=3, name="layer.weight") for n in range(count)]


@pytest.mark.parametrize("density", [0.01, 0.09, 0.5, 1.0])
def test_random_k_draws_k_distinct_elements_evenly(density):
    numel, k = 200, round(200 * density)
    seen = torch.zeros(numel)
    for step in steps(2000):
        rows = random_k(density).support(numel, step)
        assert rows.numel() == k
        assert (rows.diff() > 0).all()
        seen[rows] += 1
    expected = 2000 * density
    chi_squared = float(((seen - expected) ** 2 / expected).sum())
    assert chi_squared < 300  # 199 degrees of freedom: mean 199, deviation 20


def test_random_block_starts_evenly_and_goes_around_the_end():
    numel, k = 64, 10
    seen, around = torch.zeros(numel), 0
    for step in steps(2000):
        rows = random_block(k / numel).support(numel, step)
        assert rows.numel() == k
        gaps = rows.diff()
        assert (gaps > 0).all()
        if (gaps > 1).any():
            around += 1
            assert rows[0] == 0
            assert rows[-1] == numel - 1
            assert (gaps != 1).sum() == 1
        seen[rows] += 1
    assert 2000 * (k - 1) / numel * 0.8 < around < 2000 * (k - 1) / numel * 1.2
    assert seen.min() > 0.7 * 2000 * k / numel
    assert seen.max() < 1.3 * 2000 * k / numel


@pytest.mark.parametrize("make", [random_k, random_block])
def test_shared_choices_follow_step_and_name_alone(make):
    selector = make(0.1)
    assert isinstance(selector, SharedSelector)
    one, other = torch.randn(500), torch.randn(500)
    here, there = selector.select(one, steps(1)[0]), selector.select(other, steps(1)[0])
    assert torch.equal(here.indices, there.indices)
    assert not torch.equal(here.indices, selector.support(500, Step(1, 3, "layer.weight")))
    assert not torch.equal(here.indices, selector.support(500, Step(0, 3, "other.weight")))
    assert not isinstance(top_k(), SharedSelector)


@pytest.mark.parametrize("make", [random_k, random_block])
def test_unbiased_choices_are_rescaled(make):
    flat = torch.arange(1.0, 41.0)
    kept = make(0.25, unbiased=True).select(flat, Step(0))
    assert torch.equal(kept.values.view(-1), 4 * flat[kept.indices])


def reference_greedy(g, density, rounds):
    """Element by element, as the paper writes it."""
    d = len(g)
    total = sum(abs(x) for x in g)
    p = [min(density * d * abs(x) / total, 1.0) for x in g]
    for _ in range(rounds):
        below = [i for i in range(d) if p[i] < 1]
        mass = sum(p[i] for i in below)
        c = (density * d - d + len(below)) / mass if mass else 0.0
        if c <= 1:
            break
        for i in below:
            p[i] = min(c * p[i], 1.0)
    return torch.tensor(p, dtype=torch.float64)


def probabilities(size, cut):
    whole_from, inverse = cut
    return torch.where(size >= whole_from, 1.0, size / inverse if inverse else 0.0)


def heavy(numel=400, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed)).double().mul(2).exp()


@pytest.mark.parametrize("rounds", [0, 1, 2, 20])
@pytest.mark.parametrize("density", [0.02, 0.1, 0.5])
def test_greedy_probabilities_equal_the_paper_s_loop(density, rounds):
    size = heavy()
    ours = probabilities(size, greedy_cut(size, density * size.numel(), rounds))
    torch.testing.assert_close(ours, reference_greedy(size.tolist(), density, rounds), rtol=1e-9, atol=0)


def test_two_greedy_rounds_reach_the_density_on_heavy_tails():
    size = heavy(1_000_000)
    reached = [float(probabilities(size, greedy_cut(size, 100_000, rounds)).mean()) / 0.1 for rounds in (0, 1, 2)]
    assert [round(r, 2) for r in reached] == [0.72, 0.98, 1.0]


@pytest.mark.parametrize(
    ("law", "inflation"),
    [("gaussian", (6.4, 64)), ("laplace", (5.0, 50)), ("log-normal", (1.04, 2.5)), ("uniform", (10 * 0.75, 75))],
)
def test_variance_is_what_was_measured_for_each_law(law, inflation):
    rng = torch.Generator().manual_seed(1)
    uniform = torch.rand(1_000_000, generator=rng, dtype=torch.float64)
    size = {
        "gaussian": torch.randn(1_000_000, generator=rng, dtype=torch.float64).abs(),
        "laplace": -uniform.log(),
        "log-normal": heavy(1_000_000),
        "uniform": uniform,
    }[law]
    for density, expected in zip((0.1, 0.01), inflation, strict=True):
        p = probabilities(size, greedy_cut(size, density * size.numel(), 2))
        assert float((size**2 / p).sum() / (size**2).sum()) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_exact_probabilities_are_the_bisected_optimum(epsilon):
    size = heavy()
    ours = probabilities(size, exact_cut(size, epsilon))
    low, high = 1e-12, 1e12
    for _ in range(200):
        factor = (low * high) ** 0.5
        p = (factor * size).clamp(max=1.0)
        low, high = (
            (low, factor) if float((size**2 / p).sum()) < (1 + epsilon) * float((size**2).sum()) else (factor, high)
        )
    torch.testing.assert_close(ours, p, rtol=1e-6, atol=0)
    assert float((size**2 / ours).sum() / (size**2).sum()) == pytest.approx(1 + epsilon, rel=1e-9)


def test_small_elements_share_one_magnitude_and_large_ones_travel_as_they_are():
    flat = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0] * 100 + [1e4])
    kept = wangni(0.1).select(flat, Step(2, 1, "w"))
    whole_from, inverse = greedy_cut(flat.abs().double(), 50, 2)
    small = flat[kept.indices].abs() < whole_from
    assert small.sum() > 20
    expected = flat[kept.indices].sign() * torch.tensor(inverse, dtype=torch.float32)
    assert torch.equal(kept.values.view(-1)[small], expected[small])
    assert kept.values[-1].item() == 1e4


@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_all_zero_and_all_equal(epsilon):
    selector = wangni(0.5, epsilon=epsilon)
    assert selector.select(torch.zeros(100), Step(0)).indices.numel() == 0
    equal = selector.select(torch.full((1000,), -0.5), Step(0))
    assert equal.values.view(-1).unique().numel() == 1
    assert equal.values[0].item() == pytest.approx(-1.0)
    assert 400 < equal.indices.numel() < 600


@pytest.mark.parametrize("make", [random_k, random_block, wangni])
@pytest.mark.parametrize("density", [0, -0.1, 1.5, float("nan"), "0.1", True])
def test_densities_that_cannot_be_are_refused(make, density):
    with pytest.raises(UserError, match="density is the fraction that is kept, above 0 and at most 1"):
        make(density)


def test_settings_of_wangni_are_checked():
    with pytest.raises(UserError, match="epsilon must be above 0"):
        wangni(epsilon=0)
    with pytest.raises(UserError, match="rounds must be a whole number"):
        wangni(rounds=-1)
