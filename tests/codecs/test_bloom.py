"""Bloom filters as index codecs: what each policy promises."""

import math

import pytest
import torch

from omnizen import catalog
from omnizen.codecs.index import bloom as module
from omnizen.codecs.index.bloom import filter_size
from omnizen.errors import UserError
from omnizen.types import Packed, Sparse, Sparsity, Step

POLICIES = ("bloom-p0", "bloom-p1", "bloom-p2")


def random_rows(num_rows, density, width=1):
    rng = torch.Generator().manual_seed(0)
    indices = (torch.rand(num_rows, generator=rng) < density).nonzero().view(-1)
    return Sparse(indices, torch.randn(indices.numel(), width, generator=rng), num_rows)


def through(name, rows, n=0):
    codec = catalog.codec(name)
    return codec.decode(codec.encode(rows, Step(n)))


def lost(rows, back):
    return float((back.to_dense() - rows.to_dense()).square().sum() / rows.values.square().sum())


@pytest.mark.parametrize(("density", "bits", "hashes"), [(0.1, 10.1, 7), (0.01, 14.43, 10), (0.001, 20.2, 14)])
def test_filters_have_the_size_of_the_paper(density, bits, hashes):
    made, chosen = filter_size(round(density * 10**6), 10**6, 0.1)
    assert chosen == hashes == math.ceil(math.log2(1 / (0.1 * density)))
    assert made / (density * 10**6) == pytest.approx(bits, abs=0.03)


def test_p0_sends_about_a_tenth_more_values_and_loses_nothing():
    rows = random_rows(200_000, 0.01)
    packed = catalog.codec("bloom-p0").encode(rows, Step(0))
    count = rows.indices.numel()
    wrong = (200_000 - count) * 2.0**-10
    assert count + wrong - 5 * wrong**0.5 < packed.streams[0].shape[0] < count + wrong + 5 * wrong**0.5
    back = catalog.codec("bloom-p0").decode(packed)
    assert torch.equal(back.indices, rows.indices)
    assert torch.equal(back.values, rows.values)


def test_p0_keeps_rows_that_are_there_and_zero():
    rows = Sparse(torch.arange(0, 900, 3), torch.zeros(300, 2), 1000)
    rows.values[::2, 1] = -0.0
    back = through("bloom-p0", rows)
    assert torch.equal(back.indices, rows.indices)
    assert torch.equal(back.values, rows.values)


@pytest.mark.parametrize("name", POLICIES[1:])
def test_drawn_rows_are_as_many_as_were_there_and_true_ones_keep_their_values(name):
    rows = random_rows(100_000, 0.01, width=2)
    back = through(name, rows)
    assert back.indices.numel() == rows.indices.numel()
    true = torch.isin(back.indices, rows.indices)
    assert torch.equal(back.values[true], rows.to_dense()[back.indices[true]])
    assert (back.values[~true] == 0).all()


def test_conflict_sets_lose_far_less_than_chance():
    rows = random_rows(100_000, 0.01)
    by_chance, by_sets = lost(rows, through("bloom-p1", rows)), lost(rows, through("bloom-p2", rows))
    assert by_chance == pytest.approx(0.1 / 1.1, rel=0.5)  # a tenth more rows than places
    assert by_sets < by_chance / 5


def test_the_middle_of_the_range_is_what_a_filter_takes():
    rows = random_rows(300_000, 0.01)
    for name in POLICIES:
        codec = catalog.codec(name)
        low, high = codec.nbytes(Sparsity(300_000, 1, rows.indices.numel() / 300_000))
        for n in range(5):
            nbytes = codec.encode(rows, Step(n)).nbytes
            assert low <= nbytes <= high
            assert nbytes == pytest.approx((low + high) / 2, rel=0.02)


def test_what_p1_loses_changes_from_step_to_step():
    rows = random_rows(20_000, 0.01)
    sums = sum(through("bloom-p1", rows, n).to_dense() for n in range(60)).view(-1)[rows.indices]
    assert (sums != 0).all()  # every row arrives sooner or later


@pytest.mark.parametrize("name", POLICIES)
def test_values_that_are_not_finite_always_arrive(name):
    rows = random_rows(50_000, 0.01)
    rows.values[::10] = float("nan")
    for n in range(5):
        assert torch.equal(through(name, rows, n).to_dense().isnan(), rows.to_dense().isnan())


@pytest.mark.parametrize("k", [1, 3, 10, 50, 200])
def test_few_rows_of_a_large_tensor_let_few_others_through(k):
    indices = torch.randperm(500_000, generator=torch.Generator().manual_seed(k))[:k].sort().values
    rows = Sparse(indices, torch.ones(k, 1), 500_000)
    codec = catalog.codec("bloom-p0")
    low, high = codec.nbytes(Sparsity(500_000, 1, k / 500_000))
    for n in range(10):
        packed = codec.encode(rows, Step(n))
        assert low <= packed.nbytes <= high
        assert packed.streams[0].shape[0] <= 2 * k + 5


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("indices", "num_rows"), [([], 0), ([], 9), ([0], 1), (range(50), 50), ([0, 999], 1000)])
def test_extremes(name, indices, num_rows):
    rows = Sparse(torch.tensor(list(indices), dtype=torch.int64), torch.ones(len(indices), 3), num_rows)
    back = through(name, rows)
    assert back.values.shape == rows.values.shape
    if name == "bloom-p0" or len(indices) == num_rows:
        assert torch.equal(back.indices, rows.indices)


def test_too_large_and_unsorted_and_damaged_is_refused(monkeypatch):
    codec = catalog.codec("bloom-p2")
    with pytest.raises(UserError, match="too much; use another index codec"):
        codec.encode(Sparse(torch.tensor([1]), torch.ones(1, 1), 2**33), Step(0))
    with pytest.raises(UserError, match="must ascend"):
        codec.encode(Sparse(torch.tensor([2, 1]), torch.ones(2, 1), 10), Step(0))
    packed = codec.encode(random_rows(10_000, 0.01), Step(0))
    values, bits = packed.streams
    with pytest.raises(UserError, match="damaged payload"):
        codec.decode(Packed((values, torch.zeros_like(bits)), packed.meta, packed.codec))
    with pytest.raises(UserError, match="damaged payload"):
        codec.decode(Packed((values[1:], bits), packed.meta, packed.codec))
    with pytest.raises(UserError, match="allowed: p0, p1, p2"):
        module.bloom("p3")
    with pytest.raises(UserError, match="share must be above 0"):
        module.bloom(share=0)
