"""Every exact reducer gives the dense average, on every rank the same, whatever the input."""

import pytest
import torch

from omnizen import catalog
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.reducers.contribution import as_tensor
from omnizen.types import Dense, Sparse, Step

SIZES = [1, 2, 3, 4, 5, 7, 8]
SPARSE = [name for name in catalog.schemes("row-sparse") if name != "dense"]


def contribution(rank, num_rows=40, width=3, k=12, dtype=torch.float32, seed=0):
    rng = torch.Generator().manual_seed(1000 * seed + rank)
    rows = torch.randperm(num_rows, generator=rng)[:k].sort().values
    return Sparse(rows, torch.randn(k, width, generator=rng, dtype=torch.float64).to(dtype), num_rows)


def average(reducer, inputs):
    def body(comm):
        x = inputs[comm.rank]
        return reducer.start(x, reducer.init(x), comm, Step(0)).wait()

    return run_ranks(len(inputs), body)


def assert_average(name, inputs, rtol=1e-6, **settings):
    values = [r.value for r in average(catalog.reducer(name, **settings), inputs)]
    whole = [as_tensor(v) for v in values]
    expected = (sum(as_tensor(x).double() for x in inputs) / len(inputs)).to(whole[0].dtype)
    torch.testing.assert_close(whole[0], expected, rtol=rtol, atol=rtol, equal_nan=True)
    for rank, value in enumerate(values):
        assert value.values.dtype == inputs[0].values.dtype
        torch.testing.assert_close(whole[rank], whole[0], rtol=0, atol=0, equal_nan=True)
        if isinstance(value, Sparse):
            assert value.indices.dtype == torch.int64
            assert (value.indices[1:] > value.indices[:-1]).all()
    return values


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", catalog.schemes("row-sparse"))
def test_equals_the_dense_average(name, size):
    assert_average(name, [contribution(r) for r in range(size)])


@pytest.mark.parametrize("name", catalog.schemes("row-sparse"))
@pytest.mark.parametrize("lengths", [(0, 0, 0), (0, 5, 0), (7, 0, 1)])
def test_empty_contributions(name, lengths):
    assert_average(name, [contribution(r, k=k) for r, k in enumerate(lengths)])


@pytest.mark.parametrize("name", catalog.schemes("row-sparse"))
def test_row_zero_and_width_one_on_three_ranks(name):
    inputs = [Sparse(torch.tensor([0]), torch.tensor([[1.0 + r]]), 1) for r in range(3)]
    (value, *_) = assert_average(name, inputs)
    assert as_tensor(value).tolist() == [[2.0]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", catalog.schemes("row-sparse"))
def test_other_types_are_summed_precisely(name, dtype):
    # One rounding to the input's type at the end is all that is allowed.
    rtol = 1e-12 if dtype == torch.float64 else torch.finfo(dtype).eps
    assert_average(name, [contribution(r, dtype=dtype) for r in range(5)], rtol=rtol)


@pytest.mark.parametrize("name", catalog.schemes("row-sparse"))
def test_not_finite_values_arrive(name):
    inputs = [contribution(r) for r in range(4)]
    inputs[1].values[0, 0] = float("nan")
    inputs[2].values[3, 1] = float("inf")
    inputs[3].values[:] = float("-inf")
    assert_average(name, inputs)


@pytest.mark.parametrize("name", catalog.schemes("row-sparse"))
def test_non_contiguous_values_and_untouched_inputs(name):
    inputs = []
    for rank in range(3):
        x = contribution(rank, width=6)
        inputs.append(Sparse(x.indices, x.values[:, ::2], x.num_rows))
    before = [(x.indices.clone(), x.values.clone()) for x in inputs]
    values = assert_average(name, inputs)
    values[0].values.fill_(7.0)
    for x, (rows, old) in zip(inputs, before, strict=True):
        assert torch.equal(x.indices, rows)
        assert torch.equal(x.values, old)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_dense_contributions_keep_their_shape(dtype):
    inputs = [Dense(torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(r)).to(dtype)) for r in range(3)]
    (value, *_) = assert_average("dense", inputs, rtol=1e-3 if dtype == torch.float16 else 1e-6)
    assert value.values.shape == (2, 3, 5)


@pytest.mark.parametrize("name", [name for name in SPARSE if "bitmap" not in name])
def test_more_rows_than_32_bits_hold(name):
    num_rows = 2**31 + 10
    inputs = [Sparse(torch.tensor([0, 2**31 + rank]), torch.ones(2, 2), num_rows) for rank in range(3)]
    for result in average(catalog.reducer(name), inputs):
        assert result.value.indices.tolist() == [0, 2**31, 2**31 + 1, 2**31 + 2]
        torch.testing.assert_close(result.value.values[:, 0], torch.tensor([1.0, 1 / 3, 1 / 3, 1 / 3]))


@pytest.mark.parametrize("values", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", catalog.schemes("row-sparse"))
@pytest.mark.parametrize("size", [1, 3, 8])
def test_16_bit_wire_is_near_and_conserves(name, values, size):
    inputs = [contribution(r) for r in range(size)]
    reducer = catalog.reducer(name, values=values)
    assert not reducer.exact
    results = average(reducer, inputs)
    whole = [as_tensor(r.value) for r in results]
    expected = sum(as_tensor(x) for x in inputs) / size
    torch.testing.assert_close(whole[0], expected, rtol=0, atol=0.03 if values == "bfloat16" else 0.004)
    assert size == 1 or not torch.equal(whole[0], expected)
    sent = sum(as_tensor(r.sent).double() for r in results) / size
    torch.testing.assert_close(whole[0].double(), sent, rtol=1e-6, atol=1e-6)
    for other in whole:
        assert torch.equal(other, whole[0])


@pytest.mark.parametrize("name", [name for name in catalog.schemes("row-sparse") if name != "sparcml"])
def test_16_bit_values_are_summed_in_float32(name):
    # In float16, 2048 + 1 is 2048: six ones and a two would add up to 2050 at the most, not 2056 = 8 * 257.
    inputs = [Sparse(torch.tensor([0]), torch.tensor([[float(v)]]), 1) for v in (2048, 1, 1, 1, 1, 1, 1, 2)]
    for result in average(catalog.reducer(name, values="float16"), inputs):
        assert as_tensor(result.value).item() == 257


@pytest.mark.parametrize("name", SPARSE)
def test_refuses_what_it_cannot_reduce(name):
    reducer = catalog.reducer(name)
    bad = {
        "strictly ascending": Sparse(torch.tensor([1, 1]), torch.ones(2, 2), 4),
        "must be in 0..3, got 4": Sparse(torch.tensor([1, 4]), torch.ones(2, 2), 4),
        "needs indices": Sparse(torch.tensor([1]), torch.ones(2, 2), 4),
        "takes a Sparse contribution, got Dense": Dense(torch.ones(2)),
        "averages floating-point values": Sparse(torch.tensor([1]), torch.ones(1, 2, dtype=torch.int32), 4),
    }
    for message, x in bad.items():
        if isinstance(x, Dense) and Dense in reducer.takes:
            continue
        with pytest.raises(UserError, match=message):
            average(reducer, [x])
