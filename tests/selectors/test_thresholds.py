"""Selectors that look for a threshold, against their formulas computed anew and against exact selection."""

import math

import pytest
import torch

from omnizen import catalog
from omnizen.errors import UserError
from omnizen.kernels.magnitudes import Moments
from omnizen.selectors import tails
from omnizen.selectors.mstopk import mstopk
from omnizen.selectors.sampled_threshold import sampled_threshold
from omnizen.selectors.sidco import adapted, most_stages, sidco
from omnizen.types import Step

N = 1_000_000
STEP = Step(2, shared_seed=1, name="layer")


def laplace(n=N, seed=0):
    u = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.5
    return (-u.sign() * (1 - 2 * u.abs()).clamp(min=1e-12).log()).float()


def normal(n=N, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def recall(kept, flat, k):
    exact = flat.abs().topk(k).indices
    return float(torch.isin(exact, kept.indices).float().mean())


@pytest.mark.parametrize("density", [0.005, 0.01, 0.2])
@pytest.mark.parametrize("make", [laplace, normal])
def test_sampled_threshold_finds_the_largest_without_searching(make, density, monkeypatch):
    monkeypatch.setattr("omnizen.selectors.sampled_threshold.largest", None)  # searching would fail
    flat = make()
    kept = sampled_threshold(density).select(flat, STEP)
    k = round(density * N)
    assert 0.9 * k < kept.indices.numel() < 1.25 * k
    assert recall(kept, flat, k) > 0.97
    least = kept.values.abs().min()
    assert kept.indices.numel() == int((flat.abs() >= least).sum())


def test_sampled_threshold_corrects_what_a_sample_cannot_see():
    k = 10_000
    flat = torch.full((N,), 0.5)  # all alike: a threshold keeps all or none
    kept = sampled_threshold(0.01).select(flat, STEP)
    assert kept.indices.tolist() == list(range(k))
    flat = torch.zeros(N)
    flat[7::200] = 1.0 + torch.arange(N // 200)  # fewer than k are not zero
    assert sampled_threshold(0.01).select(flat, STEP).indices.numel() == N // 200
    flat[:20_000] = float("nan")
    assert sampled_threshold(0.01).select(flat, STEP).indices.tolist() == list(range(20_000))


def test_samples_differ_by_step():
    flat = normal()
    first, again, other = (sampled_threshold(0.01).select(flat, Step(n)).indices.numel() for n in (0, 0, 1))
    assert first == again != other


def reference_mstopk(flat, k, rounds):
    """Algorithm 1 as the paper's authors transcribed it, up to the choice of the run."""
    a = flat.abs()
    mean, most = float(a.mean()), float(a.max())
    low, high, k1, k2, thr1, thr2 = 0.0, 1.0, 0, a.numel(), 0.0, 0.0
    for _ in range(rounds):
        ratio = low + (high - low) / 2
        threshold = torch.tensor(mean + ratio * (most - mean))
        count = int((a >= threshold).sum())
        if count <= k:
            high = ratio
            if count > k1:
                k1, thr1 = count, threshold
        else:
            low = ratio
            if count < k2:
                k2, thr2 = count, threshold
    return (a >= thr1).nonzero().view(-1), ((a >= thr2) & (a < thr1)).nonzero().view(-1)


@pytest.mark.parametrize("rounds", [8, 16])
@pytest.mark.parametrize("make", [laplace, normal])
def test_mstopk_equals_its_algorithm(make, rounds):
    flat, k = make(100_000), 1000
    sure, others = reference_mstopk(flat, k, rounds)
    kept = mstopk(0.01, rounds).select(flat, STEP).indices
    assert kept.numel() == k
    assert torch.isin(sure, kept).all()
    rest = kept[~torch.isin(kept, sure)]
    assert rest.numel() == k - sure.numel()
    begin = int((others == rest[0]).nonzero()) if rest.numel() else 0
    assert torch.equal(rest, others[begin : begin + rest.numel()])


def test_mstopk_takes_the_rest_where_the_search_does_not_reach():
    flat = normal(1000)
    kept = mstopk(0.6).select(flat, STEP)
    assert kept.indices.numel() == 600
    assert recall(kept, flat, 100) == 1


@pytest.mark.parametrize(("shape", "fraction"), [(0.5, 0.01), (1.0, 0.25), (3.0, 0.001), (40.0, 0.5)])
def test_gamma_quantiles_invert_the_tail(shape, fraction):
    x = tails._gamma_quantile(shape, fraction)
    beyond = torch.special.gammaincc(*torch.tensor([shape, x], dtype=torch.float64))
    assert float(beyond) == pytest.approx(fraction, rel=1e-9)
    if shape == 1.0:
        assert x == pytest.approx(-math.log(fraction))


def test_tails_by_their_formulas():
    some = Moments(10, 2.0, 3.0, 0.1)
    assert tails.exponential(some, 0.5, 0.1) == pytest.approx(0.5 + 1.5 * math.log(10))
    shape, scale = 0.5 * (1.5**2 / 3 - 1), 0.5 * 1.5 * (1.5**2 / 3 + 1)
    assert tails.pareto(some, 0.5, 0.1) == pytest.approx(
        0.5 + scale * (1 - math.exp(shape * math.log(0.1))) / shape
    )
    alike = Moments(10, 2.0, 4.0, 0.0)  # variance = mean^2: the exponential tail
    assert tails.pareto(alike, 0.0, 0.1) == pytest.approx(tails.exponential(alike, 0.0, 0.1))
    assert tails.pareto(Moments(10, 2.0, 0.0, math.log(2)), 0.0, 0.1) == 2.0
    assert tails.gamma(Moments(10, 2.0, 0.0, math.log(2)), 0.1) == 2.0


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_exponential_fit_is_exact_on_exponential_magnitudes(stages):
    kept = sidco("exponential", 0.01, stages).select(laplace(), STEP)
    assert kept.indices.numel() == pytest.approx(10_000, rel=0.03)


@pytest.mark.parametrize("fit", ["exponential", "gamma", "pareto"])
def test_thresholds_of_two_stages_by_the_formulas(fit):
    flat, density = normal(200_000), 0.01
    a = flat.abs().double()
    mean, variance, k = float(a.mean()), float(a.var(correction=0)), 2000
    if fit == "exponential":
        first = -mean * math.log(0.25)
    elif fit == "pareto":
        first = tails.pareto(Moments(1, mean, variance, 0.0), 0.0, 0.25)
    else:
        first = tails.gamma(Moments(1, mean, variance, float(a.log().mean())), 0.25)
    some = a[a >= torch.tensor(first).float()]
    over = float(some.mean()) - first
    if fit == "exponential":
        second = first - over * math.log(density / 0.25)
    else:
        second = tails.pareto(Moments(1, first + over, float(some.var(correction=0)), 0.0), first, density / 0.25)
    assert sidco(fit, density, 2).threshold(flat, k) == pytest.approx(second, rel=1e-5)


@pytest.mark.parametrize("fit", ["exponential", "gamma", "pareto"])
def test_zeros_do_not_enter_the_fit(fit):
    flat = torch.zeros(N)
    flat[::10] = normal(N // 10)
    kept = sidco(fit, 0.01, 3).select(flat, STEP)
    assert kept.indices.numel() == pytest.approx(10_000, rel=0.25)


def test_a_fit_that_leaves_nothing_is_replaced():
    flat = torch.full((1000,), 0.1)
    assert sidco("exponential", 0.01, 1).select(flat, STEP).indices.tolist() == list(range(10))


def test_stages_adapt_every_five_selections_within_bounds():
    def after(kept, stages, rounds=5):
        remembered = {"stages": float(stages)}
        for _ in range(rounds):
            remembered = adapted(remembered, kept, 100, 0.01)
        return remembered["stages"]

    assert [after(kept, 3) for kept in (50, 79, 81, 119, 121, 300)] == [4, 4, 3, 3, 2, 2]
    assert after(50, 3, rounds=4) == 3
    assert after(300, 1) == 1
    assert most_stages(0.01) == 7
    assert after(0, 7) == 7
    assert most_stages(1.0) == 1


def test_adapting_brings_the_number_kept_near_the_target():
    flat, remembered = normal(200_000), {"stages": 1.0}
    for _ in range(40):
        kept = sidco("exponential", 0.01, int(remembered["stages"])).select(flat, STEP).indices.numel()
        remembered = adapted(remembered, kept, 2000, 0.01)
    assert remembered["stages"] == 3
    assert 0.8 < kept / 2000 < 1.2


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("sampled-threshold", {"hits": 0}, "hits must be a whole number in 64..1048576, got 0"),
        ("mstopk", {"rounds": 0}, "rounds must be a whole number in 1..64, got 0"),
        ("sidco-gamma", {"stages": 2.0}, r"sidco-gamma: stages must be a whole number in 1..64, got 2.0"),
        ("sidco-gamma", {"fit": "gama"}, "did you mean 'gamma'"),
    ],
)
def test_impossible_settings_are_refused(name, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        catalog.selector(name, **settings)
