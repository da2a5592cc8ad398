"""Bit fields, Golomb-Rice and byte codes: each numba twin gives what its reference gives, and undoes it."""

import pytest
import torch

from omnizen.errors import UserError
from omnizen.kernels.byte_code import byte_decode, byte_encode, two_byte_limit
from omnizen.kernels.fields import pack_fields, unpack_fields
from omnizen.kernels.rice import rice_decode, rice_encode

SIZES = [0, 1, 2, 63, 64, 65, 1000]


def numbers_of(k, largest, seed=0):
    """Return k numbers of very different sizes, the largest among them."""
    rng = torch.Generator().manual_seed(seed)
    made = (torch.rand(k, generator=rng, dtype=torch.float64) * torch.tensor(float(largest)).log1p()).expm1().long()
    made[:1] = largest
    return made


@pytest.mark.parametrize("bits", [0, 1, 2, 5, 8, 9, 12, 24, 31, 33, 53, 63])
@pytest.mark.parametrize("k", SIZES)
def test_fields_twins_agree_and_invert(k, bits):
    fields = torch.randint(0, 2**62, (k,), generator=torch.Generator().manual_seed(k)) & ((1 << bits) - 1)
    packed = pack_fields.run("reference", fields, bits)
    assert packed.numel() == -(-k * bits // 8)
    assert torch.equal(pack_fields.run("cpu", fields, bits), packed)
    for impl in ("reference", "cpu"):
        assert torch.equal(unpack_fields.run(impl, packed, bits, k), fields)


def test_fields_are_packed_lowest_first():
    assert pack_fields(torch.tensor([1, 2, 7]), 3).tolist() == [0b11010001, 0b1]


@pytest.mark.parametrize("bits", [0, 1, 6, 13, 40])
@pytest.mark.parametrize("k", SIZES)
def test_rice_twins_agree_and_invert(k, bits):
    numbers = numbers_of(k, 3000 << bits)
    coded = rice_encode.run("reference", numbers, bits)
    for got, expected in zip(rice_encode.run("cpu", numbers, bits), coded, strict=True):
        assert torch.equal(got, expected)
    assert coded[0].numel() == -(-k * bits // 8)
    assert coded[1].numel() == -(-(int((numbers >> bits).sum()) + k) // 8)
    for impl in ("reference", "cpu"):
        assert torch.equal(rice_decode.run(impl, *coded, bits, k), numbers)


def test_rice_by_hand():
    remainders, unary = rice_encode(torch.tensor([0, 5, 3]), 2)  # quotients 0, 1, 0; remainders 0, 1, 3
    assert remainders.tolist() == [0b110100]
    assert unary.tolist() == [0b1101]


@pytest.mark.parametrize("impl", ["reference", "cpu"])
def test_damaged_rice_streams_are_refused(impl):
    remainders, unary = rice_encode(torch.tensor([7, 1, 12]), 2)
    for low, high, count in ((remainders, unary, 4), (remainders, unary, 2), (remainders[:-1], unary, 3)):
        with pytest.raises(UserError, match=f"do not hold {count} numbers"):
            rice_decode.run(impl, low, high, 2, count)


@pytest.mark.parametrize("split", [1, 100, 253, 255])
@pytest.mark.parametrize("k", SIZES)
def test_byte_code_twins_agree_and_invert(k, split):
    limit = two_byte_limit(split)
    edges = torch.tensor([split - 1, split, limit - 1, limit, limit + 127, limit + 128, limit + 2**14, 2**62])
    numbers = torch.cat([numbers_of(k, 2**40), edges])
    coded = byte_encode.run("reference", numbers, split)
    assert torch.equal(byte_encode.run("cpu", numbers, split), coded)
    for impl in ("reference", "cpu"):
        assert torch.equal(byte_decode.run(impl, coded, split, numbers.numel()), numbers)
        assert byte_decode.run(impl, coded[:0], split, 0).tolist() == []


def test_byte_code_by_hand():
    coded = byte_encode(torch.tensor([252, 253, 253 + 511, 253 + 512, 253 + 512 + 300]), 253)
    assert coded.tolist() == [252, 253, 0, 254, 255, 255, 0, 255, 128 | 300 & 127, 300 >> 7]


@pytest.mark.parametrize("impl", ["reference", "cpu"])
def test_damaged_bytes_are_refused(impl):
    coded = byte_encode(torch.tensor([5, 300, 70_000]), 253)
    for data, count in ((coded[:-1], 3), (coded[:2], 2), (coded, 2), (coded, 4), (coded[:0], 1)):
        with pytest.raises(UserError, match=f"do not hold {count} numbers"):
            byte_decode.run(impl, data, 253, count)
