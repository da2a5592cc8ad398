"""A peer that ends at any point of any reducer: the others are told, or have what they need; nobody hangs."""

import pytest
import torch

from omnizen import catalog
from omnizen.comm.faults import Drop, Dropped, Faults, Faulty
from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.errors import PeerLost, PeerTimeout
from omnizen.laws.samples import contributions
from omnizen.reducers.contribution import as_tensor
from omnizen.types import Step

LIMIT_S = 10.0
REDUCERS = {
    **{name: catalog.reducer(name) for name in catalog.REDUCERS},
    **{f"{name} in 16 bits": catalog.reducer(name, values="bfloat16") for name in catalog.schemes("row-sparse")},
    "hierarchical": catalog.WRAPPERS["hierarchical"].make(catalog.reducer("sparcml"), groups=2),
    "feedback": catalog.WRAPPERS["feedback"].make(catalog.reducer("zen-coo", values="float16")),
}


def reduce(reducer, comm):
    x = contributions(reducer.takes[0])["plain"](comm.rank)
    comm.step = 0
    return as_tensor(reducer.start(x, reducer.init(x), comm, Step(0, shared_seed=1, name="lost")).wait().value)


def outcomes(reducer, size, faults):
    def body(comm):
        try:
            return reduce(reducer, comm)
        except Dropped:
            return "dropped"
        except PeerLost as error:
            return "late" if isinstance(error, PeerTimeout) else "told"

    return run_ranks(size, body, timeout_s=LIMIT_S, wrap=lambda comm: Faulty(comm, faults))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", REDUCERS)
def test_a_peer_that_ends_in_any_verb_is_lost_to_the_others(name, size):
    reducer = REDUCERS[name]
    victim = size - 2

    def whole(comm):
        return reduce(reducer, comm), sum(comm.reading().calls.values())

    undisturbed = run_ranks(size, whole, timeout_s=LIMIT_S, wrap=Metered)
    verbs = undisturbed[victim][1]
    assert verbs, "a reducer that calls nobody averages nothing"
    for call in range(verbs):
        fault = Drop(victim, 0, call)
        faults = Faults(fault)
        found = outcomes(reducer, size, faults)
        assert faults.count(fault) == 1
        assert isinstance(found[victim], str), (call, found)
        others = [(rank, got) for rank, got in enumerate(found) if rank != victim]
        assert any(isinstance(got, str) for _, got in others), f"call {call}: nobody missed rank {victim}"
        for rank, got in others:
            if isinstance(got, str):
                assert got == "told", (call, rank)
            else:  # it needed nothing more from anybody
                torch.testing.assert_close(got, undisturbed[rank][0], rtol=0, atol=0, equal_nan=True)
