"""Pairs of an index codec and a value codec keep the laws and are the sum of both."""

import pytest
import torch

from omnizen import catalog
from omnizen.codecs.paired import paired
from omnizen.errors import UserError
from omnizen.laws.codec import check_codec
from omnizen.types import Dense, Sparse, Sparsity, Step

INDEX = ("coo", "bitmap", "golomb", "delta-varint", "run-length")
VALUE = ("cast-bfloat16", "qsgd", "terngrad", "sign", "natural", "fp8")


@pytest.mark.parametrize(
    ("index", "value"), [*((i, "cast-bfloat16") for i in INDEX), *(("golomb", v) for v in VALUE)]
)
def test_pairs_keep_every_law(index, value):
    pair = paired(catalog.codec(index), catalog.codec(value))
    assert {v.law: v.reason for v in check_codec(pair) if not v.held} == {}
    assert pair.name == f"{index}+{value}"


@pytest.mark.parametrize("index", INDEX)
def test_a_pair_is_both_codecs_side_by_side(index):
    rows = Sparse(torch.tensor([1, 2, 30]), torch.tensor([[1.0, 2.0], [3.0, 4.0], [1 / 3, 0.0]]), 40)
    places, values = catalog.codec(index), catalog.codec("cast-float16")
    pair = paired(places, values)
    packed = pair.encode(rows, Step(0))
    alone = values.encode(Dense(rows.values), Step(0))
    assert packed.nbytes == alone.nbytes + places.encode(rows, Step(0)).nbytes - rows.values.numel() * 4
    back = pair.decode(packed)
    assert torch.equal(back.indices, rows.indices)
    assert torch.equal(back.values, values.decode(alone).values)
    low, high = pair.nbytes(Sparsity(40, 2, 3 / 40))
    assert low <= packed.nbytes <= high


def test_pairs_refuse_what_does_not_fit():
    with pytest.raises(
        UserError, match="the index codec must take Sparse and give Packed; 'cast-float16' takes Dense"
    ):
        paired(catalog.codec("cast-float16"), catalog.codec("coo"))
    with pytest.raises(
        UserError, match="the value codec must take Dense and give Packed; 'rows' takes Dense and gives Sp"
    ):
        paired(catalog.codec("coo"), catalog.codec("rows"))
    with pytest.raises(UserError, match="made of codecs"):
        paired(catalog.codec("coo"), "zstd")
