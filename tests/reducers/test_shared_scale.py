"""Whole numbers on a shared scale: no number of ranks overflows, and the sum is the sum of what each rank sent."""

import numpy as np
import pytest
import torch

from omnizen import catalog
from omnizen.codecs.shared_scale import shared_scale_int8
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.reducers.shared_scale import WIDTHS, from_lanes, shared_scale, to_lanes
from omnizen.types import Dense, Layout, Step

LAYOUT = Layout.of([("a", (10, 4)), ("none", (0,)), ("b", (25,))])


def reduce_all(reducer, xs, n=0):
    def body(comm):
        x = xs[comm.rank]
        return reducer.start(x, reducer.init(x), comm, Step(n, shared_seed=3, name="x")).wait()

    return run_ranks(len(xs), body)


def flats(size, seed=0):
    return [torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(seed + r)) for r in range(size)]


@pytest.mark.parametrize(("size", "bits", "levels"), [(2, 8, 63), (5, 8, 25), (3, 4, 2), (8, 4, 15), (4, 16, 8191)])
def test_equals_rounding_in_numpy(size, bits, levels):
    """Eight ranks do not fit a 4-bit field (15 // 16 = 0 levels), so 8 bits are taken."""
    xs = flats(size)
    results = reduce_all(shared_scale(bits), [Dense(x, LAYOUT) for x in xs])
    for slot in LAYOUT.slots:
        parts = [LAYOUT.view(x, slot).double().numpy() for x in xs]
        scale = max(np.abs(p).max(initial=0.0) for p in parts)
        sent = [np.round(p.astype(np.float32) / np.float32(scale or 1) * levels) * scale / levels for p in parts]
        got = LAYOUT.view(results[0].value.values, slot).numpy()
        np.testing.assert_allclose(got, np.mean(sent, 0) if len(parts) else got, atol=1e-6)
        for rank, result in enumerate(results):
            np.testing.assert_allclose(LAYOUT.view(result.sent.values, slot).numpy(), sent[rank], atol=1e-6)


@pytest.mark.parametrize(("bits", "size"), [(4, 7), (4, 8), (8, 40), (8, 127)])
def test_the_largest_sums_do_not_overflow(bits, size):
    x = torch.tensor([1.0, -1.0, 1.0, 0.0])
    for result in reduce_all(shared_scale(bits, levels=1), [Dense(x)] * size)[:2]:
        assert result.value.values.tolist() == x.tolist()


def test_bits_follow_the_number_of_ranks():
    reducer = shared_scale()
    for size in (1, 2, 3, 8, 63, 64, 127, 128, 1000, 32767):
        bits, levels = reducer.field(size)
        assert 2 * levels * size <= 2**bits - 1
        assert levels >= 1
    with pytest.raises(UserError, match="32768 ranks' 1 levels do not add up in 16 bits"):
        reducer.field(32768)


def test_random_rounding_is_right_in_the_mean():
    reducer = shared_scale(bits=4, levels=1, rounding="random")
    x = torch.tensor([0.1, -0.4, 1.0, 0.0, -0.75])
    total = sum(reduce_all(reducer, [Dense(x), Dense(x)], n)[0].value.values for n in range(600)) / 600
    # a value p of the scale is 1 with probability p: deviation below 0.5 / sqrt(1200) = 0.0144
    torch.testing.assert_close(total, x, rtol=0, atol=5 * 0.0144)


def test_clipping_cuts_outliers_and_says_so():
    x = torch.ones(100)
    x[7] = 1000.0
    (done,) = reduce_all(shared_scale(16, clip=2.5), [Dense(x)])
    bound = 2.5 * float(x.std())
    assert float(done.value.values[7]) == pytest.approx(bound, rel=1e-3)
    assert float(done.sent.values[7]) == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("clip", [None, 2.5])
def test_what_is_not_finite_spoils_its_own_tensor_only(bad, clip):
    xs = flats(3)
    LAYOUT.view(xs[1], LAYOUT.slots[0])[2, 2] = bad
    for result in reduce_all(shared_scale(clip=clip), [Dense(x, LAYOUT) for x in xs]):
        assert torch.isnan(LAYOUT.view(result.value.values, LAYOUT.slots[0])).all()
        assert torch.isfinite(LAYOUT.view(result.value.values, LAYOUT.slots[2])).all()


def test_a_quarter_of_the_bytes_of_float32():
    from omnizen.types import Sparsity

    pattern = Sparsity(100_000, 10, 1.0)
    whole = catalog.reducer("dense").traffic(pattern, 8).rx_bytes
    assert catalog.reducer("shared-scale").traffic(pattern, 8).rx_bytes == pytest.approx(whole / 4, rel=1e-4)
    assert catalog.reducer("shared-scale", bits=4).traffic(pattern, 7).rx_bytes / whole == pytest.approx(
        (2 * 6 / 7 / 8) / (2 * 7 / 8), rel=1e-3
    )


def test_settings_are_checked():
    for settings, said in (
        ({"bits": 5}, "bits: got 5; allowed: 4, 8, 16"),
        ({"levels": 0}, "levels must be"),
        ({"rounding": "up"}, "rounding: got 'up'"),
        ({"clip": 0.0}, "clip is a number"),
    ):
        with pytest.raises(UserError, match=said):
            shared_scale(**settings)
    with pytest.raises(UserError, match=r"addends must be in 1\.\.127"):
        shared_scale_int8(addends=128)
    with pytest.raises(UserError, match="scale must be"):
        shared_scale_int8(scale=0)


def test_bytes_of_as_many_addends_as_declared_fit():
    codec = shared_scale_int8(scale=2.0, addends=100)
    made = codec.encode(Dense(torch.tensor([2.0, -2.0, 5.0])), Step(0))
    total = type(made)((made.streams[0] * 100, made.streams[1]), made.meta, made.codec)
    assert codec.decode(total).values.tolist() == [200.0, -200.0, 200.0]


SIZES = [0, 1, 7, 8, 1023, 4097]


@pytest.mark.parametrize("length", SIZES)
@pytest.mark.parametrize("bits", WIDTHS)
def test_fields_come_back(bits, length):
    numbers = torch.randint(2**bits, (length,), generator=torch.Generator().manual_seed(length))
    lanes = to_lanes(numbers, bits)
    assert lanes.dtype == torch.int32
    assert lanes.numel() == -(-length * bits // 32)
    assert torch.equal(from_lanes(lanes, bits, length), numbers)


@pytest.mark.parametrize("bits", WIDTHS)
def test_sums_up_to_the_last_number_carry_nothing_over(bits):
    addends = 5
    most = (2**bits - 1) // addends
    rng = torch.Generator().manual_seed(bits)
    parts = [torch.randint(most + 1, (33,), generator=rng) for _ in range(addends)]
    parts = [torch.full_like(p, most) if i == 0 else p for i, p in enumerate(parts)]
    lanes = sum(to_lanes(p, bits) for p in parts[1:]) + to_lanes(parts[0], bits)
    assert torch.equal(from_lanes(lanes, bits, 33), sum(parts[1:], parts[0]))
    full = sum(to_lanes(parts[0], bits) for _ in range(addends))
    assert set(from_lanes(full, bits, 33).tolist()) == {most * addends}
