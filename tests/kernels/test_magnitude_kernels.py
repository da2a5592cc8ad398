"""Kernels that choose by magnitude: twins give what their references give, and the k largest are the k largest."""

import math

import pytest
import torch

from omnizen.kernels.compaction import all_from, compact
from omnizen.kernels.cpu.scratch import KEPT_BYTES, scratch
from omnizen.kernels.largest import largest
from omnizen.kernels.magnitudes import Moments, count_from, kth_magnitude, moments, peak, sample_magnitudes

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SIZES = [0, 1, 31, 32, 1023, 4097, 300_000]
NAN, INF = float("nan"), float("inf")


def values(n, dtype=torch.float32, seed=0):
    flat = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    if n > 40:
        flat[[3, 4, 5, 6, n - 1]] = torch.tensor([NAN, -INF, 0.0, -0.0, INF], dtype=dtype)
    return flat


def alike(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("threshold", [0.0, 1e-9, 0.5, 2.0, INF])
def test_compaction_twins_agree(n, dtype, threshold):
    flat = values(n, dtype)
    indices, found, count = compact.run("reference", flat, threshold, n)
    assert count == indices.numel() == count_from.run("reference", flat, threshold)
    assert count_from.run("cpu", flat, threshold) == count
    for room in {n, count, count // 2, 0}:
        got = compact.run("cpu", flat, threshold, room)
        assert got[2] == count
        alike(got[0], indices[:room])
        alike(got[1], found[:room])
        alike(compact.run("reference", flat, threshold, room)[0], indices[:room])


def test_compaction_keeps_what_reaches_the_threshold_and_never_zeros():
    flat = torch.tensor([0.5, -0.5, 0.49, 0.0, NAN, -INF, -0.0, 1e-45])
    for impl in ("reference", "cpu"):
        assert compact.run(impl, flat, 0.5, 8)[0].tolist() == [0, 1, 4, 5]
        assert compact.run(impl, flat, 0.0, 8)[0].tolist() == [0, 1, 2, 4, 5, 7]


def test_compaction_of_non_contiguous_values_with_a_graph():
    flat = torch.ones(70, 2, requires_grad=True)[:, 1] * torch.arange(70.0)
    assert compact(flat, 68.0, 9)[0].tolist() == [68, 69]


def test_all_are_found_however_few_were_expected():
    flat = values(4097)
    expected = compact.run("reference", flat, 0.1, 4097)
    for guess in (0, 10, 4097, 10**6):
        for got, wanted in zip(all_from(flat, 0.1, guess), expected[:2], strict=True):
            alike(got, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_the_k_largest_of_both_twins_agree(n, dtype):
    flat = values(n, dtype)
    for k in {0, min(1, n), n // 1000, n // 100, n // 3, n - n // 10, n}:
        for got, expected in zip(largest.run("cpu", flat, k), largest.run("reference", flat, k), strict=True):
            alike(got, expected)
        if k:
            assert kth_magnitude.run("cpu", flat, k) == kth_magnitude.run("reference", flat, k)


@pytest.mark.parametrize(
    "flat",
    [
        torch.full((100_000,), -2.0),
        torch.zeros(100_000),
        torch.full((100_000,), NAN),
        torch.arange(100_000).float(),
        torch.arange(100_000).flip(0).float(),
        torch.where(torch.arange(100_000) % 64 == 0, 5.0, 0.001),
        torch.where(torch.arange(100_000) > 99_990, 1e30, 1e-30),
        (torch.arange(100_000) % 7).float(),
    ],
    ids=["equal", "zero", "nan", "rising", "falling", "periodic", "few huge", "ties"],
)
def test_no_pattern_makes_the_k_largest_wrong(flat):
    for k in (1, 100, 1000, 50_000):
        for got, expected in zip(largest.run("cpu", flat, k), largest.run("reference", flat, k), strict=True):
            alike(got, expected)


def test_the_k_largest_by_sorting():
    flat = values(50_000, seed=3)[:-1]
    flat[3:5] = 1.0
    order = flat.abs().sort(descending=True, stable=True).indices
    assert largest(flat, 777)[0].tolist() == sorted(order[:777].tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_moments_twins_agree(n, dtype):
    flat = values(n, dtype)
    assert peak.run("cpu", flat) == peak.run("reference", flat)
    for threshold in (0.0, 0.5, 9.0, INF):
        got = moments.run("cpu", flat, threshold, True)
        assert got == pytest.approx(moments.run("reference", flat, threshold, True), rel=1e-9, abs=1e-9)
        assert moments.run("cpu", flat, threshold, False).mean_log == 0


def test_moments_by_hand():
    flat = torch.tensor([1.0, -math.e, 0.0, NAN, INF, 0.5])
    for impl in ("reference", "cpu"):
        some = moments.run(impl, flat, 1.0, True)
        spread = (math.e - 1) / 2
        assert some == pytest.approx(Moments(2, (1 + math.e) / 2, spread**2, 0.5), rel=1e-6)
        assert peak.run(impl, flat) == pytest.approx(math.e)


def test_logarithms_of_the_least_and_the_most_that_float32_holds():
    for extreme in (1e-45, 3.4e38):
        flat = torch.full((1000,), extreme)
        assert moments.run("cpu", flat, 0.0, True).mean_log == pytest.approx(float(flat[0].double().log()))


@pytest.mark.parametrize("n", [1, 64, 4097, 300_000])
def test_samples_of_both_twins_agree_and_are_spread(n):
    flat = values(n)
    for count in {1, max(1, n // 7), n}:
        expected = sample_magnitudes.run("reference", flat, count, 2**40 + 7)
        alike(sample_magnitudes.run("cpu", flat, count, 2**40 + 7), expected)
    places = sample_magnitudes(torch.arange(n).double(), max(1, n // 7), 5)
    assert (places.diff() > 0).all()
    assert torch.equal(sample_magnitudes(torch.arange(n).double(), n, 5), torch.arange(n).double())


def test_a_sample_does_not_follow_the_period_of_rows():
    matrix = torch.zeros(10_000, 100)
    matrix[:, 0] = 1.0
    share = float(sample_magnitudes(matrix.view(-1), 10_000, 1).mean())
    assert 0.005 < share < 0.015
    assert not torch.equal(
        sample_magnitudes(matrix.view(-1), 10_000, 1), sample_magnitudes(matrix.view(-1), 10_000, 2)
    )


def test_scratch_is_kept_unless_it_is_large():
    first = scratch("test", 10, "i8")
    first[:] = 7
    assert scratch("test", 5, "i8").tolist() == [7] * 5
    assert scratch("other", 10, "i8").base is not first.base
    scratch("test", KEPT_BYTES, "i8")
    assert scratch("test", 5, "i8").tolist() == [7] * 5
