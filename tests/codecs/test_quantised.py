"""Quantisers against their definitions, computed by other means."""

import math

import pytest
import torch

from omnizen import catalog
from omnizen.errors import UserError
from omnizen.types import Dense, Step

STEPS = 1500


def gaussian(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def through(codec, x, n=0):
    return codec.decode(codec.encode(Dense(x), Step(n, shared_seed=1))).values


def many(codec, x):
    return torch.stack([through(codec, x, n) for n in range(STEPS)]).double()


@pytest.mark.parametrize(("levels", "bits"), [(1, 2), (3, 3), (7, 4), (127, 8), (128, 9)])
def test_qsgd_gives_one_of_the_two_levels_around(levels, bits):
    x = gaussian(1000)
    codec = catalog.codec("qsgd", levels=levels, bucket=100)
    made = codec.encode(Dense(x), Step(0))
    assert made.streams[0].numel() == -(-1000 * bits // 8)
    back = codec.decode(made).values.double()
    for at in range(0, 1000, 100):
        bucket = x[at : at + 100].double()
        unit = float(bucket.abs().max()) / levels
        shares = back[at : at + 100] / unit
        assert torch.allclose(shares, shares.round(), atol=1e-4)
        assert ((shares - bucket / unit).abs() <= 1 + 1e-4).all()


def test_qsgd_takes_a_level_as_often_as_the_value_is_near_it():
    x = torch.tensor([8.0, 1.0, -2.5, 7.5])  # 4 levels: units of 2
    back = many(catalog.codec("qsgd", levels=4), x)
    assert set(back[:, 1].tolist()) == {0.0, 2.0}
    for place, far, share in ((1, 2.0, 0.5), (2, -4.0, 0.25), (3, 8.0, 0.75)):
        measured = float((back[:, place] == far).double().mean())
        assert measured == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / STEPS))


def test_qsgd_with_the_l2_norm_keeps_the_bound_of_the_paper():
    x, levels = gaussian(256, seed=3), 4
    back = many(catalog.codec("qsgd", levels=levels, bucket=0, norm="l2"), x)
    unit = float(x.double().norm()) / levels
    assert torch.allclose((back / unit), (back / unit).round(), atol=1e-4)
    variance = float((back - x).square().sum(1).mean() / x.double().square().sum())
    shares = x.double().abs() / unit
    expected = (
        float(((shares - shares.floor()) * (shares.ceil() - shares)).sum())
        * unit**2
        / float(x.double().norm()) ** 2
    )
    assert variance == pytest.approx(expected, rel=0.05)
    assert variance <= min(256 / levels**2, math.sqrt(256) / levels)  # lemma 3.1


def test_the_largest_magnitude_gives_less_variance_than_the_l2_norm():
    x = gaussian(512)
    errors = {norm: (many(catalog.codec("qsgd", norm=norm), x) - x).square().mean() for norm in ("max", "l2")}
    assert errors["max"] < 0.2 * errors["l2"]


def test_terngrad_has_three_values_and_the_variance_of_the_formula():
    x = gaussian(203)
    codec = catalog.codec("terngrad")
    made = codec.encode(Dense(x), Step(0))
    assert made.streams[0].numel() == 41
    top = float(x.abs().max())
    back = many(codec, x)
    assert set(back.unique().tolist()) == {-top, 0.0, top}
    expected = float((x.abs() * (top - x.abs())).double().sum())  # s |x| - x^2
    assert float((back - x).square().sum(1).mean()) == pytest.approx(expected, rel=0.05)


def test_terngrad_with_clipping_is_biased_and_says_so():
    x = torch.cat([torch.ones(99), torch.tensor([50.0])])
    codec = catalog.codec("terngrad", clip=2.5)
    assert not codec.unbiased
    limit = 2.5 * float(x.double().std(correction=0))
    assert float(through(codec, x).abs().max()) == pytest.approx(limit)


def test_sign_sends_the_mean_magnitude_of_each_bucket():
    x = gaussian(1000)
    assert torch.allclose(through(catalog.codec("sign"), x), x.sign() * x.abs().mean())
    back = through(catalog.codec("sign", bucket=300), x)
    for at in (0, 300, 600, 900):
        part = x[at : at + 300]
        assert torch.allclose(back[at : at + 300], part.sign() * part.abs().mean())
    made = catalog.codec("sign").encode(Dense(x), Step(0))
    assert [stream.numel() for stream in made.streams] == [125, 1, 0]


def test_sign_is_the_best_multiple_of_the_signs():
    x = gaussian(100).double()
    error = (through(catalog.codec("sign"), x) - x).norm()
    for factor in (0.99, 1.01):
        assert error < (factor * through(catalog.codec("sign"), x) - x).norm()


def test_natural_gives_one_of_the_powers_of_two_around():
    x = torch.tensor([3.0, -5.0, 1.0, 0.0, 1e-3, -7.9, 1e-40])
    back = many(catalog.codec("natural"), x)
    for place, value in enumerate(x.tolist()):
        got = set(back[:, place].tolist())
        if value == 0 or abs(value) == 1:
            assert got == {value}
            continue
        low = 2.0 ** math.floor(math.log2(abs(value)))
        neighbours = (low, 2 * low) if abs(value) >= 2**-126 else (0.0, 2.0**-126)
        assert got <= {math.copysign(n, value) for n in neighbours}
        share = (abs(value) - neighbours[0]) / (neighbours[1] - neighbours[0])
        far = float((back[:, place].abs() == neighbours[1]).double().mean())
        assert far == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / STEPS) + 1e-9)


def test_natural_adds_an_eighth_of_variance_at_most_and_takes_nine_bits():
    x = gaussian(2000)
    back = torch.stack([through(catalog.codec("natural"), x, n) for n in range(200)]).double()
    variance = float((back - x).square().sum(1).mean() / x.double().square().sum())
    low = 2.0 ** x.double().abs().log2().floor()
    share = (x.double().abs() - low) / low
    assert variance == pytest.approx(
        float((low**2 * share * (1 - share)).sum() / x.double().square().sum()), rel=0.03
    )
    assert variance < 1 / 8
    assert catalog.codec("natural").encode(Dense(x), Step(0)).nbytes == 2000 * 9 / 8
    assert catalog.codec("natural").encode(Dense(x.double()), Step(0)).nbytes == 2000 * 12 / 8


def eight_bit_floats(exponent_bits, largest):
    """All finite magnitudes, from the definition of the format."""
    mantissa_bits, bias = 7 - exponent_bits, 2 ** (exponent_bits - 1) - 1
    found = []
    for code in range(128):
        exponent, mantissa = code >> mantissa_bits, (code & (2**mantissa_bits - 1)) / 2**mantissa_bits
        value = mantissa * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa) * 2.0 ** (exponent - bias)
        if value <= largest:
            found.append(value)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize(("name", "exponent_bits", "largest"), [("e4m3", 4, 448.0), ("e5m2", 5, 57344.0)])
def test_fp8_rounds_to_the_nearest_number_of_its_format(name, exponent_bits, largest):
    table = eight_bit_floats(exponent_bits, largest)
    assert float(table.max()) == largest
    x = gaussian(384).double() * torch.logspace(-3, 3, 384, dtype=torch.float64)
    back = through(catalog.codec("fp8", format=name, block=128), x.float()).double()
    for at in (0, 128, 256):
        part = x[at : at + 128].float().double()
        scale = 2.0 ** math.ceil(math.log2(float(part.abs().max()) / largest))
        distance = (part.abs()[:, None] / scale - table).abs()
        got = back[at : at + 128].abs() / scale
        assert torch.allclose((got - part.abs() / scale).abs(), distance.min(1).values, rtol=1e-6)
        assert (distance[:, :].min(1).values <= part.abs() / scale / 2 ** (8 - exponent_bits) + table[1]).all()


def test_fp8_stays_in_range_where_float32_scales_would_not():
    for factor in (1e-44, 1e-41, 1e37):
        x = gaussian(300) * factor
        x = x.double()
        assert ((through(catalog.codec("fp8"), x.float()) - x).norm() / x.norm()) < 0.2
    x = gaussian(300).double() * 1e-200
    assert ((through(catalog.codec("fp8"), x) - x) * 1e200).norm() < 0.03 * (x * 1e200).norm()
    back = through(catalog.codec("qsgd", levels=1000, norm="l2"), x)
    assert ((back - x) * 1e200).norm() < 0.03 * (x * 1e200).norm()


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("qsgd", {"levels": 0}, "levels must be from 1"),
        ("qsgd", {"bucket": -1}, "bucket 0 or more"),
        ("qsgd", {"norm": "l1"}, "did you mean 'l2'"),
        ("terngrad", {"clip": 0.0}, "clip must be above 0"),
        ("sign", {"bucket": -1}, "bucket must be 0 or more"),
        ("fp8", {"format": "e4m33"}, "did you mean 'e4m3'"),
        ("fp8", {"block": -1}, "block must be 0 or more"),
    ],
)
def test_settings_that_cannot_be_are_refused(name, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        catalog.codec(name, **settings)
