"""SIDCo's numbers of stages follow what was selected, tensor by tensor, and survive a checkpoint."""

import pytest
import torch

from omnizen import catalog
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.laws.reducer import check_reducer
from omnizen.reducers.adaptive import adaptive
from omnizen.reducers.agsparse import agsparse
from omnizen.reducers.state import from_state_dict, state_dict
from omnizen.selectors.sidco import adapted, sidco
from omnizen.types import Dense, Layout, Step

LAYOUT = Layout.of([("heavy", (4_000,)), ("light", (50, 80))])


def contribution(rank, step):
    """Draw a tensor with a tail far heavier than the fit expects, and one without any tail."""
    rng = torch.Generator().manual_seed(100 * step + rank)
    heavy = torch.randn(4_000, generator=rng).div_(torch.rand(4_000, generator=rng).pow_(2))
    return Dense(torch.cat([heavy, torch.rand(4_000, generator=rng) - 0.5]), LAYOUT)


def run(steps, reducer, states=None, first=0):
    def body(comm):
        state = reducer.init(contribution(comm.rank, 0)) if states is None else states[comm.rank]
        values = []
        for n in range(first, steps):
            done = reducer.start(contribution(comm.rank, n), state, comm, Step(n, name="bucket")).wait()
            state = done.state
            values.append(done.value.to_dense())
        return state, values

    return run_ranks(2, body)


def test_each_tensor_follows_the_papers_rule():
    reducer = adaptive(agsparse(), density=0.01, stages=2)
    for rank, (state, _) in enumerate(run(11, reducer)):
        for place, tensor in enumerate(("heavy", "light")):
            remembered = {"stages": 2.0}
            for n in range(11):
                flat = contribution(rank, n).values[4_000 * place : 4_000 * (place + 1)]
                kept = sidco("exponential", 0.01, int(remembered["stages"])).select(flat, Step(n))
                remembered = adapted(remembered, kept.indices.numel(), 40, 0.01)
            assert remembered == {key: state.scalars[f"{tensor}.{key}"] for key in ("stages", "steps", "ratios")}
        assert state.scalars["heavy.stages"] > state.scalars["light.stages"]


def test_stages_go_on_from_a_checkpoint():
    reducer = catalog.reducer("feedback(adaptive(agsparse, stages=1))")
    whole = run(12, reducer)
    half = run(7, reducer)
    again = run(12, reducer, [from_state_dict(state_dict(state)) for state, _ in half], first=7)
    for (state, values), (later_state, later) in zip(whole, again, strict=True):
        assert state.scalars == later_state.scalars
        for a, b in zip(values[7:], later, strict=True):
            assert torch.equal(a, b)


def test_laws_hold_but_for_bytes_that_depend_on_the_fit():
    broken = {v.law for v in check_reducer(adaptive(agsparse()), sizes=(1, 3)) if not v.held}
    assert broken <= {"traffic is predicted"}


def test_only_what_fits_is_put_together():
    with pytest.raises(UserError, match="needs a reducer of rows"):
        adaptive(catalog.reducer("dense-packed"))
    with pytest.raises(UserError, match="did you mean 'gamma'"):
        adaptive(agsparse(), fit="gama")
    assert adaptive(agsparse(), density=0.3, stages=9).selector.stages == 2
