"""Lossless codecs of values: every bit back, and bits saved where theory says that there are some."""

import sys

import pytest
import torch

from omnizen import catalog
from omnizen.codecs.values.exponent_pack import window
from omnizen.errors import UserError
from omnizen.types import Dense, Packed, Step

NAMES = ("exponent-pack", "zstd")


def gaussian(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def bits_a_value(name, x):
    return 8 * catalog.codec(name).encode(Dense(x), Step(0)).nbytes / x.numel()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_bit_comes_back(name, dtype):
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, 1e30])
    x = torch.cat([gaussian(1000), gaussian(50) * 1e-20, special]).to(dtype)
    codec = catalog.codec(name)
    back = codec.decode(codec.encode(Dense(x), Step(0))).values
    assert torch.equal(back.view(torch.uint8), x.view(torch.uint8))


def test_exponents_of_a_gaussian_take_about_four_bits():
    x = gaussian(100_000)
    assert bits_a_value("exponent-pack", x) == pytest.approx(24 + 3.8, abs=0.1)
    assert bits_a_value("exponent-pack", x.bfloat16()) == pytest.approx(8 + 3.8, abs=0.1)
    counts = torch.bincount(torch.frexp(x).exponent + 200)
    shares = counts[counts > 0] / x.numel()
    entropy = float(-(shares * shares.log2()).sum())
    assert 2 < entropy < bits_a_value("exponent-pack", x) - 24  # no code of the exponents is shorter


def test_zeros_have_a_code_and_are_not_written_out():
    x = gaussian(100_000)
    x[::2] = 0
    assert bits_a_value("exponent-pack", x) < 28.1


def test_numbers_of_all_sizes_take_no_more_than_they_are():
    x = (
        torch.randint(-(2**31), 2**31, (50_000,), generator=torch.Generator().manual_seed(0))
        .int()
        .view(torch.float32)
    )
    assert 32 <= bits_a_value("exponent-pack", x) < 32.01


def test_windows_are_the_best_that_there_are():
    counts = torch.randint(0, 1000, (32,), generator=torch.Generator().manual_seed(3)) // torch.arange(1, 33) ** 2
    width, top = window(counts)

    def cost(width, top):
        inside = set(range(top - (2**width - 2) + 1, top + 1)) | {0}
        return int(counts.sum()) * width + 16 * sum(int(c) for e, c in enumerate(counts) if e not in inside)

    every = [cost(w, t) for w in range(2, 5) for t in range(2**w - 3, 32)] + [5 * int(counts.sum())]
    assert min(every) == (cost(width, top) if width < 5 else 5 * int(counts.sum()))


def test_zstd_saves_zeros():
    x = gaussian(100_000)
    x[torch.rand(100_000, generator=torch.Generator().manual_seed(1)) < 0.5] = 0
    assert bits_a_value("zstd", x) < 20
    assert bits_a_value("zstd", torch.zeros(100_000)) < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_damaged_payloads_are_refused(name):
    codec = catalog.codec(name)
    packed = codec.encode(Dense(gaussian(500)), Step(0))
    first, *rest = packed.streams
    more = (packed.meta[0], 1, 501, *packed.meta[3:])
    for streams, meta in (
        ((first[:-1], *rest), packed.meta),
        ((first[:0], *rest), packed.meta),
        (packed.streams, more),
    ):
        with pytest.raises(UserError, match="damaged payload"):
            codec.decode(Packed(streams, meta, packed.codec))


def test_bytes_that_zstd_did_not_make_are_refused():
    codec = catalog.codec("zstd")
    packed = codec.encode(Dense(gaussian(50)), Step(0))
    noise = torch.arange(100, dtype=torch.uint8)
    with pytest.raises(UserError, match="zstd: damaged payload"):
        codec.decode(Packed((noise,), packed.meta, packed.codec))


def test_a_missing_library_is_named(monkeypatch):
    for name in ("backports.zstd", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"pip install 'omnizen\[zstd\]'"):
        catalog.codec("zstd").encode(Dense(gaussian(5)), Step(0))


def test_levels_are_checked():
    with pytest.raises(UserError, match="level must be from 1 to 19"):
        catalog.codec("zstd", level=0)
