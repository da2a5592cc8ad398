"""What reducers, wrappers and codecs refuse with a sentence, and what they take though it is unusual."""

from __future__ import annotations

import pytest
import torch

from omnizen import catalog
from omnizen.codecs.bitmap import bitmap
from omnizen.codecs.cast import cast
from omnizen.codecs.coo import coo
from omnizen.codecs.pipe import pipe
from omnizen.codecs.rows import rows
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.reducers.by_size import by_size
from omnizen.reducers.dense import dense
from omnizen.reducers.feedback import feedback
from omnizen.reducers.warmup import warmup
from omnizen.types import Dense, Sparse, State, Step

SPARSE = [name for name in catalog.schemes("row-sparse") if name != "dense"]


def averaged(reducer, contributions):
    def body(comm):
        x = contributions[comm.rank]
        return reducer.start(x, reducer.init(x), comm, Step(0)).wait()

    return run_ranks(len(contributions), body)


def some(num_rows, indices=(0,), values=None) -> Sparse:
    at = torch.tensor(indices) if isinstance(indices, tuple) else indices
    return Sparse(at, torch.ones(len(indices), 2) if values is None else values, num_rows)


@pytest.mark.parametrize("name", catalog.schemes("row-sparse"))
@pytest.mark.parametrize(
    ("x", "said"),
    [
        (some(-1, ()), r"num_rows must be in 0\.\.2\^48, got -1"),
        (some("5"), "num_rows must be in .*'5'"),
        (some(2**49), "num_rows must be in"),
        (some(5, [1]), "takes tensors, got Tensor, list"),
        (some(5, values=[[1.0, 1.0]]), "takes tensors, got list"),
        (torch.ones(3), "contribution, got Tensor"),
    ],
)
def test_contributions(name: str, x, said: str) -> None:
    reducer = catalog.reducer(name)
    with pytest.raises(UserError, match=said):
        run_ranks(1, lambda comm: reducer.start(x, State(), comm, Step(0)).wait())


@pytest.mark.parametrize("name", [name for name in SPARSE if "bitmap" not in name])
def test_tables_of_very_many_rows(name: str) -> None:
    last = 2**48 - 1
    for done in averaged(
        catalog.reducer(name), [some(2**48, (0, 7, last)), some(2**48, (7,)), some(2**48, (last,))]
    ):
        assert done.value.indices.tolist() == [0, 7, last]
        torch.testing.assert_close(done.value.values[:, 0], torch.tensor([1.0, 2.0, 2.0]) / 3)


def test_a_bit_for_each_of_too_many_rows() -> None:
    with pytest.raises(UserError, match="one bit a row for 17592186044416 rows is too much"):
        bitmap().encode(some(2**44), Step(0))


@pytest.mark.parametrize("name", catalog.schemes("row-sparse"))
@pytest.mark.parametrize("values", ["float32", "float16"])
def test_values_that_belong_to_a_graph(name: str, values: str) -> None:
    """A residual that kept the graph would hold every step's memory."""
    mine = [some(5, (1, 4), torch.randn(2, 3, requires_grad=True)) for _ in range(2)]
    for done in averaged(catalog.reducer(name, values=values), mine):
        assert not done.value.values.requires_grad
        assert done.sent is None or not done.sent.values.requires_grad


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: feedback("zen-coo"), r"wraps reducers, got 'zen-coo'; catalog.reducer\(name\)"),
        (lambda: warmup(dense(), None, 3), "wraps reducers, got None"),
        (lambda: by_size("dense", dense()), "wraps reducers, got 'dense'"),
        (lambda: warmup(dense(), dense(), 1.5), "steps must not be negative and must be a whole number, got 1.5"),
        (lambda: by_size(dense(), dense(), "1k"), "at_bytes must not be negative.*got '1k'"),
        (lambda: feedback(dense("float16"), "high"), "decay must be in .*'high'"),
        (lambda: feedback(dense("float16"), float("nan")), "decay must be in"),
        (lambda: coo(["float16"]), "wire format of values"),
        (lambda: pipe(rows(), "coo"), "made of codecs, got 'coo'"),
    ],
)
def test_settings(make, said: str) -> None:
    with pytest.raises(UserError, match=said):
        make()


@pytest.mark.parametrize("codec", [coo(), bitmap(), cast(), rows()])
def test_codecs_given_something_else(codec) -> None:
    for payload in (torch.ones(3), Dense(torch.ones(2, dtype=torch.int64)), some(5, values=torch.ones(1, 2).int())):
        if isinstance(codec, type(rows())) and isinstance(payload, Dense):
            continue  # rows() finds the non-zero rows of any matrix
        with pytest.raises(UserError, match=r"takes a|packs values of"):
            codec.encode(payload, Step(0))


def test_unpacking_what_another_codec_packed() -> None:
    """Bits read as indices would be rows that nobody sent."""
    with pytest.raises(UserError, match="coo was given to unpack what bitmap packed"):
        coo().decode(bitmap().encode(some(5), Step(0)))
    with pytest.raises(UserError, match="takes a Packed payload, got Sparse"):
        bitmap().decode(some(5))
