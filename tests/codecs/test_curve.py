"""Curves through sorted values, against fits by other means."""

import itertools

import numpy as np
import pytest
import torch

from omnizen import catalog
from omnizen.codecs.values.curve_poly import KNOTS
from omnizen.errors import UserError
from omnizen.types import Dense, Packed, Step

NAMES = ("curve-poly", "curve-exp")


def gaussian(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def through(codec, x):
    return codec.decode(codec.encode(Dense(x), Step(0))).values


def off(codec, x):
    return float((through(codec, x) - x).norm() / x.norm())


def test_polynomials_are_those_of_numpy():
    x = gaussian(3000).double().abs()
    largest_first = np.sort(x.numpy())[::-1]
    expected = []
    ends = [round(knot * 3000) for knot in KNOTS]
    for begin, end in itertools.pairwise(ends):
        t = np.linspace(-1, 1, end - begin)
        expected.append(np.polyval(np.polyfit(t, largest_first[begin:end], 5), t))
    expected = np.clip(np.concatenate(expected), 0, largest_first[0])
    got = through(catalog.codec("curve-poly"), x).sort(descending=False).values
    assert torch.allclose(got, torch.from_numpy(np.sort(expected)), atol=1e-6)


@pytest.mark.parametrize(
    ("a", "p", "c", "q"), [(0.7, -30.0, 0.3, -2.0), (0.5, -5.0, 0.5, -0.5), (1.0, -8.0, 0.0, -1.0)]
)
def test_a_sum_of_two_exponentials_is_found(a, p, c, q):
    t = torch.linspace(0, 1, 5000, dtype=torch.float64)
    x = (a * (p * t).exp() + c * (q * t).exp())[torch.randperm(5000, generator=torch.Generator().manual_seed(0))]
    assert off(catalog.codec("curve-exp"), x) < 1e-3
    assert off(catalog.codec("curve-exp"), torch.cat([x, -3 * x])) < 1e-3


def test_both_fit_a_gradient_and_polynomials_fit_better():
    x = gaussian(50_000) * gaussian(50_000, 1)  # heavier tails than a Gaussian's
    poly, exp = off(catalog.codec("curve-poly"), x), off(catalog.codec("curve-exp"), x)
    assert poly < 0.02
    assert poly < exp < 0.15


@pytest.mark.parametrize("name", NAMES)
def test_ranks_are_counted_in_full(name):
    codec = catalog.codec(name)
    packed = codec.encode(Dense(gaussian(100_000)), Step(0))
    assert packed.streams[0].numel() == 100_000 * 17 / 8
    numbers = {"curve-poly": 2 * (1 + 30), "curve-exp": 2 * (1 + 4)}[name]
    assert packed.nbytes == 100_000 * 17 / 8 + 8 * numbers


def test_short_ranks_make_a_quantiser_of_as_many_levels():
    x = gaussian(10_000)
    codec = catalog.codec("curve-poly", rank_bits=6)
    packed = codec.encode(Dense(x), Step(0))
    assert packed.streams[0].numel() == 10_000 * 6 / 8
    assert codec.decode(packed).values.unique().numel() <= 64
    errors = [off(catalog.codec("curve-poly", rank_bits=bits), x) for bits in (4, 6, 8)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.05


@pytest.mark.parametrize("name", NAMES)
def test_few_values_and_equal_values_are_exact(name):
    for x in (torch.tensor([3.0]), torch.tensor([2.0, -5.0, 0.0]), torch.full((50,), -0.25), torch.zeros(9)):
        assert torch.allclose(through(catalog.codec(name), x), x, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_zeros_stay_zero_and_signs_are_kept(name):
    x = gaussian(1000)
    x[::3] = 0
    back = through(catalog.codec(name), x)
    assert (back[::3] == 0).all()
    assert (back * x >= 0).all()


def test_damaged_payloads_and_settings_that_cannot_be_are_refused():
    codec = catalog.codec("curve-exp")
    packed = codec.encode(Dense(gaussian(100)), Step(0))
    ranks, curves, odd = packed.streams
    for streams, meta in (((ranks[1:], curves, odd), packed.meta), (packed.streams, (*packed.meta[:-2], 90, 90))):
        with pytest.raises(UserError, match="damaged payload"):
            codec.decode(Packed(streams, meta, packed.codec))
    with pytest.raises(UserError, match="degree must be from 0 to 20"):
        catalog.codec("curve-poly", degree=-1)
    with pytest.raises(UserError, match="rank_bits must be from 1"):
        catalog.codec("curve-exp", rank_bits=0)
