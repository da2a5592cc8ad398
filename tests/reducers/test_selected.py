"""Selected elements travel, tensor by tensor; with a shared choice only their values do."""

import pytest
import torch

from omnizen import catalog
from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.errors import Incompatible, UserError
from omnizen.laws.reducer import check_reducer
from omnizen.reducers.agsparse import agsparse
from omnizen.reducers.dense import dense
from omnizen.reducers.feedback import RESIDUAL, feedback
from omnizen.reducers.gathered import gathered
from omnizen.reducers.selected import selected
from omnizen.types import Dense, Layout, Sparse, Step

LAYOUT = Layout.of([("a", (20, 10)), ("b", (100,)), ("c", ())])


def values(rank, n=0, numel=LAYOUT.numel):
    return torch.randn(numel, generator=torch.Generator().manual_seed(1000 * n + rank))


def train(reducer, steps=1, size=3, layout=LAYOUT, wrap=None):
    def body(comm):
        state, out = reducer.init(Dense(values(0), layout)), []
        for n in range(steps):
            out.append(reducer.start(Dense(values(comm.rank, n), layout), state, comm, Step(n, 1, "bucket")).wait())
            state = out[-1].state
        return (out, comm.reading().traffic) if wrap else out

    return run_ranks(size, body, wrap=wrap) if wrap else run_ranks(size, body)


def top(flat, k):
    kept = torch.zeros_like(flat)
    rows = flat.abs().topk(k).indices
    kept[rows] = flat[rows]
    return kept


@pytest.mark.parametrize("inner", ["agsparse", "zen-coo", "zen-bitmap", "sparcml", "dense"])
def test_top_k_of_each_tensor_is_averaged(inner):
    reducer = selected(catalog.selector("top-k", density=0.05), catalog.reducer(inner))
    expected = torch.zeros(LAYOUT.numel)
    for rank in range(3):
        flat = values(rank)
        expected += torch.cat(
            [top(LAYOUT.view(flat, s).reshape(-1), k) for s, k in zip(LAYOUT.slots, (10, 5, 1), strict=True)]
        )
    for rank, (result,) in enumerate(train(reducer)):
        value = result.value.to_dense().view(-1) if isinstance(result.value, Sparse) else result.value.values
        torch.testing.assert_close(value, expected / 3)
        assert result.sent.indices.numel() == 16
        assert torch.equal(result.sent.values.view(-1), values(rank)[result.sent.indices])


@pytest.mark.parametrize("name", ["random-k", "random-block"])
def test_of_a_shared_choice_only_values_travel_and_are_summed(name):
    reducer = selected(catalog.selector(name, density=0.1), dense())
    for (result,), traffic in train(reducer, wrap=Metered):
        assert result.value.indices.numel() == 20 + 10 + 1
        assert traffic.rx_bytes == 2 * 2 / 3 * 31 * 4
        whole = sum(values(rank) for rank in range(3)) / 3
        torch.testing.assert_close(result.value.values.view(-1), whole[result.value.indices])
        assert (result.value.indices[1:] > result.value.indices[:-1]).all()
        assert torch.equal(result.sent.indices, result.value.indices)


def test_unbiased_shared_choice_is_rescaled_by_each_tensor_s_own_factor():
    ((result,), *_) = train(selected(catalog.selector("random-k", density=0.1, unbiased=True), dense()))
    whole = sum(values(rank) for rank in range(3)) / 3
    factor = torch.where(result.value.indices < 300, 10.0, 1.0)  # the one-element tensor is always whole
    torch.testing.assert_close(result.value.values.view(-1), factor * whole[result.value.indices])


def test_ranks_draw_for_themselves_unless_the_choice_is_shared():
    own = [r[0].sent.indices for r in train(selected(catalog.selector("wangni", density=0.2), agsparse()))]
    assert not torch.equal(own[0], own[1])


REDUCERS = {
    "top-k": lambda: selected(catalog.selector("top-k"), agsparse()),
    "top-k in bfloat16": lambda: selected(catalog.selector("top-k"), agsparse("bfloat16")),
    "top-k with golomb": lambda: selected(
        catalog.selector("top-k", density=0.05), gathered(catalog.codec("golomb"))
    ),
    "random-block": lambda: selected(catalog.selector("random-block"), dense()),
    "random-k in 16 bits": lambda: selected(catalog.selector("random-k"), dense("float16")),
    "feedback": lambda: feedback(selected(catalog.selector("top-k"), agsparse())),
    "feedback of a block": lambda: feedback(selected(catalog.selector("random-block"), dense())),
}


@pytest.mark.parametrize("name", REDUCERS)
def test_laws(name):
    assert {v.law: v.reason for v in check_reducer(REDUCERS[name](), (1, 2, 3, 5)) if not v.held} == {}


@pytest.mark.parametrize("name", ["feedback", "feedback of a block"])
def test_with_feedback_all_that_was_given_arrives_or_is_owed(name):
    ranks = train(REDUCERS[name](), steps=30)
    given = sum(values(rank, n) for rank in range(3) for n in range(30)) / 3
    arrived = sum(r.value.to_dense().view(-1) for r in ranks[0])
    owed = sum(r[-1].state.slots[RESIDUAL] for r in ranks) / 3
    torch.testing.assert_close(arrived + owed, given, rtol=0, atol=1e-4)
    assert (arrived != 0).float().mean() > 0.2


def test_refusals():
    with pytest.raises(
        Incompatible, match="Selected needs a reducer of dense tensors for what random-block compacts"
    ):
        selected(catalog.selector("random-block"), agsparse())
    with pytest.raises(Incompatible, match="Selected needs a reducer of rows for what top-k selects"):
        selected(catalog.selector("top-k"), gathered(catalog.codec("cast-bfloat16")))
    with pytest.raises(UserError, match="takes a selector, got 'top-k'"):
        selected("top-k", agsparse())
    with pytest.raises(UserError, match="Selected wraps reducers, got 'dense'"):
        selected(catalog.selector("top-k"), "dense")
