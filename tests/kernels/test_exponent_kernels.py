"""Exponents split off floats: twins agree, and every bit comes back."""

import pytest
import torch

from omnizen.errors import UserError
from omnizen.kernels.exponents import Code, exponent_counts, exponent_join, exponent_split

FORMATS = {"float32": (8, 23, torch.int32), "float64": (11, 52, torch.int64), "float16": (5, 10, torch.int16)}
FORMATS["bfloat16"] = (8, 7, torch.int16)


def floats(name, n, seed=0):
    """Return the bits of floats of all sizes: normal numbers, zeros of both signs, denormals, infinity and NaN."""
    rng = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, name)
    spread = torch.randn(n, generator=rng) * torch.logspace(-12, 2, n)
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1.0])
    bits = torch.cat([spread.to(dtype), special.to(dtype)]).view(FORMATS[name][2])
    return torch.cat([bits, torch.tensor([torch.iinfo(bits.dtype).max, -1], dtype=bits.dtype)])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("width", [2, 3, 4, "full"])
@pytest.mark.parametrize("n", [0, 1, 500])
def test_twins_agree_and_join_what_they_split(name, width, n):
    exponent, places, integers = FORMATS[name]
    bits = floats(name, n)
    code = Code(exponent, places, exponent if width == "full" else width, (1 << exponent) // 2)
    parts = exponent_split.run("reference", bits, code)
    for got, expected in zip(exponent_split.run("cpu", bits, code), parts, strict=True):
        assert torch.equal(got, expected)
    for impl in ("reference", "cpu"):
        back = exponent_join.run(impl, *parts, code, bits.numel())
        assert back.dtype == integers
        assert torch.equal(back, bits)


@pytest.mark.parametrize("name", FORMATS)
def test_counts_agree_and_are_those_of_frexp(name):
    exponent, places, _ = FORMATS[name]
    bits = floats(name, 300)
    counts = exponent_counts.run("reference", bits, exponent, places)
    assert torch.equal(exponent_counts.run("cpu", bits, exponent, places), counts)
    assert counts.shape == (1 << exponent,)
    ones = torch.tensor([1.0, 1.5, -1.25, 0.5]).to(getattr(torch, name)).view(bits.dtype)
    bias = (1 << (exponent - 1)) - 1
    here = exponent_counts(ones, exponent, places)
    assert (int(here[bias]), int(here[bias - 1])) == (3, 1)


@pytest.mark.parametrize("impl", ["reference", "cpu"])
def test_streams_that_do_not_belong_together_are_refused(impl):
    code = Code(8, 23, 2, 120)
    rest, codes, written = exponent_split(floats("float32", 50), code)
    assert written.numel() > 0
    for wrong in (written[:-1], torch.cat([written, written[:1]])):
        with pytest.raises(UserError, match="do not fit the exponents written out"):
            exponent_join.run(impl, rest, codes, wrong, code, 50 + 9)
