"""Pairs of codecs travel by all-gather: the laws of reducers hold, and exact ones send less than AGsparse."""

import pytest

from omnizen import catalog
from omnizen.codecs.paired import paired
from omnizen.laws.reducer import check_reducer
from omnizen.reducers.gathered import gathered
from omnizen.types import Sparsity

PAIRS = [("golomb", "exponent-pack"), ("golomb", "cast-bfloat16"), ("bloom-p2", "qsgd"), ("delta-varint", "fp8")]


def pair(index, value):
    return gathered(paired(catalog.codec(index), catalog.codec(value)))


@pytest.mark.parametrize(("index", "value"), PAIRS)
def test_pairs_keep_the_laws_of_reducers(index, value):
    broken = {v.law: v.reason for v in check_reducer(pair(index, value), sizes=(1, 3)) if not v.held}
    if value == "exponent-pack":  # its bytes depend on the values, which no pattern tells
        broken.pop("traffic is predicted", None)
    assert broken == {}


def test_places_alone_keep_the_laws_of_reducers():
    reducer = gathered(catalog.codec("golomb"))
    assert reducer.exact
    assert {v.law: v.reason for v in check_reducer(reducer, sizes=(1, 2, 5)) if not v.held} == {}


def test_element_sparse_gradients_take_five_eighths_of_agsparse_and_lose_nothing():
    pattern = Sparsity(1_000_000, 1, 0.01)
    plain = catalog.reducer("agsparse").traffic(pattern, 4).rx_bytes
    assert gathered(catalog.codec("golomb")).traffic(pattern, 4).rx_bytes < 0.64 * plain
    assert pair("golomb", "exponent-pack").traffic(pattern, 4).rx_bytes < 0.6 * plain
