"""Inputs that failed in compressors that people use: every codec of the catalogue must take them."""

import pytest
import torch

from omnizen import catalog
from omnizen.codecs.paired import paired
from omnizen.comm.threads import run_ranks
from omnizen.reducers.feedback import feedback
from omnizen.reducers.gathered import gathered
from omnizen.types import Dense, Packed, Sparse, Step

DENSE = [n for n in catalog.CODECS if (catalog.codec(n).takes, catalog.codec(n).gives) == (Dense, Packed)]
SPARSE = [n for n in catalog.CODECS if (catalog.codec(n).takes, catalog.codec(n).gives) == (Sparse, Packed)]
X = torch.tensor([1.0, -1.0, 2.0, -2.0])


@pytest.mark.parametrize("name", DENSE)
def test_four_values_do_not_become_380(name):
    codec = catalog.codec(name)
    for n in range(20):
        back = codec.decode(codec.encode(Dense(X), Step(n))).values
        assert float(back.abs().max()) <= 2 * float(X.abs().max()), back  # a largest value is a bound for one's own


@pytest.mark.parametrize("name", SPARSE)
def test_four_rows_do_not_become_380(name):
    rows = Sparse(torch.tensor([0, 7, 8, 99]), X[:, None], 100)
    codec = catalog.codec(name)
    for n in range(20):
        back = codec.decode(codec.encode(rows, Step(n))).to_dense()
        assert ((back == rows.to_dense()) | (back == 0)).all()


def two_steps(reducer, bad, good):
    """Reduce on two ranks: a contribution with a bad value, then good ones; return the averages."""

    def body(comm):
        state, values = reducer.init(good), []
        for n, x in enumerate((bad if comm.rank == 0 else good, good, good)):
            reduced = reducer.start(x, state, comm, Step(n, name="w")).wait()
            state = reduced.state
            values.append(reduced.value if isinstance(reduced.value, Dense) else Dense(reduced.value.to_dense()))
        return values

    return run_ranks(2, body)[1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", DENSE)
def test_a_bad_value_is_reported_once_and_does_not_poison_the_residual(name, value):
    good = torch.randn(60, generator=torch.Generator().manual_seed(0))
    bad = good.clone()
    bad[7] = value
    first, second, third = (
        v.values for v in two_steps(feedback(gathered(catalog.codec(name))), Dense(bad), Dense(good))
    )
    assert not torch.isfinite(first[7])
    if not catalog.codec(name).summable:  # payloads that add up have one scale for all, and no place for exceptions
        assert torch.isfinite(torch.cat([first[:7], first[8:]])).all()
    assert torch.isfinite(torch.cat([second, third])).all()


@pytest.mark.parametrize("index", SPARSE)
def test_a_bad_row_of_a_pair_is_reported_at_its_place(index):
    indices = torch.tensor([0, 5, 9, 30])
    good = Sparse(indices, torch.ones(4, 2), 40)
    bad = Sparse(indices, torch.tensor([[1.0, 1.0], [float("nan"), 1.0], [1.0, 1.0], [1.0, float("-inf")]]), 40)
    pair = paired(catalog.codec(index), catalog.codec("qsgd"))
    first, second, _ = (v.values for v in two_steps(gathered(pair), bad, good))
    assert first.isnan().nonzero().tolist() == [[5, 0]]
    assert first.isinf().nonzero().tolist() == [[30, 1]]
    assert torch.isfinite(second).all()
