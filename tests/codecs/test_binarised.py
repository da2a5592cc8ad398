"""Top-k as one number and places: equal to the papers' rules element by element, and as short as their formula."""

import pytest
import torch

from omnizen.codecs.common_magnitude import LIST, MAP, common_magnitude
from omnizen.codecs.values.binarised import one_sided, places_bytes, ternary
from omnizen.errors import UserError
from omnizen.types import Dense, Sparse, Sparsity, Step


def values(numel=1000, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def arrived(codec, x):
    return codec.decode(codec.encode(Dense(x), Step(0))).values


def reference_one_sided(x, k):
    high, low = sorted(x.tolist(), reverse=True)[:k], sorted(x.tolist())[:k]
    up, down = sum(high) / k, -sum(low) / k
    if up >= down:
        return torch.where(x >= min(high), up, 0.0)
    return torch.where(x <= max(low), -down, 0.0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("k", [1, 10, 400])
def test_one_sided_follows_the_paper(k, seed):
    x = values(seed=seed) + (0.1 if seed % 2 else -0.1)
    torch.testing.assert_close(arrived(one_sided(k / 1000), x), reference_one_sided(x, k))


@pytest.mark.parametrize("k", [1, 10, 400, 1000])
def test_ternary_follows_the_paper(k):
    x = values()
    least = x.abs().topk(k).values.min()
    kept = torch.where(x.abs() >= least, x, 0.0)
    expected = kept.sign() * kept.abs().sum() / k
    torch.testing.assert_close(arrived(ternary(k / 1000), x), expected)


@pytest.mark.parametrize(("share", "bits"), [(0.1, 4.76), (0.01, 8.11), (0.001, 11.50)])
def test_places_are_as_short_as_the_formula_says(share, bits):
    x = values(1_000_000)
    packed = one_sided(share).encode(Dense(x), Step(0))
    k = round(share * 1_000_000)
    assert 8 * places_bytes(k, 1_000_000) / k == pytest.approx(bits, abs=0.01)
    assert 8 * (packed.nbytes - 4) / k == pytest.approx(bits, rel=0.01)
    assert packed.nbytes == pytest.approx(one_sided(share).mean_bytes(Sparsity(1_000_000, 1, 1.0)), rel=0.01)


@pytest.mark.parametrize("codec", [one_sided(0.01), ternary(0.01)])
@pytest.mark.parametrize("x", [torch.zeros(50), torch.full((50,), -0.5), torch.tensor(3.0), torch.zeros(0)])
def test_all_zero_all_equal_0d_and_empty(codec, x):
    back = arrived(codec, x)
    assert back.shape == x.shape
    assert (back[back != 0] == x[back != 0]).all()
    assert (back != 0).sum() == (1 if (x != 0).any() else 0)


def test_densities_are_checked():
    with pytest.raises(UserError, match="one-sided: density is the fraction that is kept"):
        one_sided(0)
    with pytest.raises(UserError, match="ternary: density is the fraction that is kept"):
        ternary(2)


@pytest.mark.parametrize(("num_rows", "how"), [(10_000, LIST), (600, MAP)])
def test_a_common_magnitude_travels_once_in_the_shorter_form(num_rows, how):
    rng = torch.Generator().manual_seed(1)
    rows = torch.randperm(num_rows, generator=rng)[:100].sort().values
    x = torch.where(torch.rand(100, generator=rng) < 0.5, -0.25, 0.25)
    x[[3, 50]] = torch.tensor([7.0, float("nan")])
    given = Sparse(rows, x.view(-1, 1), num_rows)
    packed = common_magnitude().encode(given, Step(0))
    assert packed.meta[-1] == how
    assert packed.nbytes == 2 * 8 + 4 + (98 * 4 if how == LIST else num_rows // 4)
    back = common_magnitude().decode(packed)
    assert torch.equal(back.indices, rows)
    assert torch.equal(torch.nan_to_num(back.values, 9), torch.nan_to_num(given.values, 9))
