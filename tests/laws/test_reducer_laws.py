"""The laws of reducers hold for every row of the catalogue, and each can fail."""

import re
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from omnizen import catalog
from omnizen.codecs.cast import narrow
from omnizen.laws.reducer import REDUCER_LAWS, Trials, check_reducer, traffic_is_predicted
from omnizen.protocols import Later
from omnizen.reducers.agsparse import agsparse
from omnizen.reducers.contribution import with_values
from omnizen.types import Reduced, Sparse, State

NAMES = list(catalog.REDUCERS)


def broken_laws(reducer, sizes=(1, 3, 4)):
    return {verdict.law: verdict.reason for verdict in check_reducer(reducer, sizes) if not verdict.held}


@pytest.mark.parametrize("name", NAMES)
def test_every_reducer_keeps_every_law(name):
    assert broken_laws(catalog.reducer(name), (1, 2, 3, 4, 5, 7, 8)) == {}


@pytest.mark.parametrize("values", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", catalog.schemes("row-sparse"))
def test_every_reducer_keeps_the_laws_with_16_bit_values(name, values):
    assert broken_laws(catalog.reducer(name, values=values), (1, 3, 4) if values == "float16" else (5,)) == {}


WRAPPED = {
    "feedback": lambda wrap: wrap(catalog.reducer("zen-coo", values="float16")),
    "feedback of dense": lambda wrap: wrap(catalog.reducer("dense", values="bfloat16"), decay=0.9),
    "warmup": lambda wrap: wrap(catalog.reducer("dense"), catalog.reducer("dense", values="float16"), steps=0),
    "hierarchical": lambda wrap: wrap(catalog.reducer("zen-coo"), groups=2),
    "hierarchical and lossy": lambda wrap: wrap(catalog.reducer("agsparse", values="float16"), groups=4),
    "hierarchical of dense": lambda wrap: wrap(catalog.reducer("dense", values="bfloat16"), groups=2),
    "by-size": lambda wrap: wrap(catalog.reducer("agsparse"), catalog.reducer("zen-bitmap"), at_bytes=300),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers_keep_every_law(name):
    sizes = (1, 2, 4, 8) if name.startswith("hierarchical") else (1, 3, 4)  # its traffic is told for equal groups
    assert broken_laws(WRAPPED[name](catalog.WRAPPERS[name.split(" ")[0]].make), sizes) == {}


@pytest.mark.parametrize("values", ["float32", "float16"])
@pytest.mark.parametrize("name", ["dense", "agsparse"])
def test_traffic_is_predicted_to_the_byte(name, values):
    if (name, values) == ("dense", "float16"):
        sizes = (2, 4, 5, 8)  # the elements divide evenly: each rank is the busiest
    else:
        sizes = (1, 2, 3, 5, 8)
    traffic_is_predicted(Trials(catalog.reducer(name, values=values), sizes), tolerance=0.0)


@dataclass(frozen=True)
class Broken:
    """A good reducer with one thing wrong."""

    exact: bool = True
    agrees: bool = True
    conserves: bool = True
    name = "broken"
    takes = (Sparse,)

    def init(self, like):
        return State(scalars={"steps": 0.0})

    def start(self, x, state, comm, step):
        pending = agsparse().start(x, state, comm, step)
        return Later(lambda: self.finish(x, pending.wait(), comm))

    def finish(self, x, reduced, comm):
        return reduced

    def traffic(self, pattern, size):
        return agsparse().traffic(pattern, size)


class DropsRowZero(Broken):
    def finish(self, x, reduced, comm):
        value = reduced.value
        keep = value.indices != 0
        return replace(reduced, value=Sparse(value.indices[keep], value.values[keep], value.num_rows))


class Sums(Broken):
    def finish(self, x, reduced, comm):
        return replace(reduced, value=with_values(reduced.value, reduced.value.values * comm.size))


class ReturnsDoubles(Broken):
    def finish(self, x, reduced, comm):
        return replace(reduced, value=with_values(reduced.value, reduced.value.values.double()))


class AddsARankOfNoise(Broken):
    def finish(self, x, reduced, comm):
        return replace(reduced, value=with_values(reduced.value, reduced.value.values * (1 + 0.1 * comm.rank)))


class HidesItsRounding(Broken):
    """Sends 16 bits, and says that it sent everything."""

    def start(self, x, state, comm, step):
        pending = agsparse("bfloat16").start(x, state, comm, step)
        return Later(lambda: replace(pending.wait(), sent=None))


class AddsUpSigns(Broken):
    """A vote of signs depends on who voted, not on the mean alone."""

    linear = True

    def start(self, x, state, comm, step):
        return agsparse().start(with_values(x, x.values.sign()), state, comm, step)


class AveragesInPlace(Broken):
    def finish(self, x, reduced, comm):
        x.values.copy_(narrow(x.values * 0.5, "float32"))
        return reduced


class ReturnsItsInput(Broken):
    """Right on one rank, but whoever changes the result changes the gradient."""

    def finish(self, x, reduced, comm):
        return replace(reduced, value=x) if comm.size == 1 else reduced


class CountsWithoutHeaders(Broken):
    def traffic(self, pattern, size):
        whole = agsparse().traffic(pattern, size)
        return replace(whole, rx_bytes=0.9 * whole.rx_bytes)


class CountsOneRound(Broken):
    def traffic(self, pattern, size):
        return replace(agsparse().traffic(pattern, size), rounds=1)


class RemembersOutsideItsState(Broken):
    """Counts its steps in a table of its own, which no checkpoint holds."""

    steps: ClassVar[dict] = {}

    def start(self, x, state, comm, step):
        pending = agsparse().start(x, state, comm, step)
        _, n = self.steps.get(id(state), (state, 0))
        self.steps[id(state)] = state, n + 1
        return Later(lambda: Reduced(with_values(x := pending.wait().value, x.values * (1 + n)), None, state))


class NeedsNobody(Broken):
    """Goes on without the others."""

    def start(self, x, state, comm, step):
        return Later(lambda: Reduced(x, None, state))


BREAKERS = [
    (ReturnsDoubles(), "keeps shape and type", "float32 came back as torch.float64"),
    (DropsRowZero(), "is the average as declared", "plain .*: rank 0 has 0 at element"),
    (Sums(), "is the average as declared", "3 ranks: rank 0 has"),
    (AddsARankOfNoise(exact=False), "agrees as declared", "ranks 0 and 1 got different values"),
    (HidesItsRounding(exact=False), "conserves as declared", "differ by"),
    (AddsUpSigns(exact=False, conserves=False), "depends on the mean alone", "when all contribute the mean"),
    (AveragesInPlace(), "leaves input alone", "was changed"),
    (ReturnsItsInput(), "leaves input alone", "1 rank: .* shared with the result"),
    (CountsWithoutHeaders(), "traffic is predicted", "predicted .* bytes received, metered"),
    (CountsOneRound(), "traffic is predicted", "predicted 1 rounds, metered 0"),
    (RemembersOutsideItsState(), "resumes", "step 2 differs after the state was saved"),
    (NeedsNobody(agrees=False, exact=False, conserves=False), "reports a lost peer", "finished, finished"),
]


@pytest.mark.parametrize(("reducer", "law", "sentence"), BREAKERS, ids=lambda x: type(x).__name__)
def test_each_law_catches_a_broken_reducer(reducer, law, sentence):
    (check,) = [one for one in REDUCER_LAWS if one.name == law]
    with pytest.raises(Exception, match=re.compile(sentence, re.DOTALL)) as caught:
        check.check(Trials(reducer, (1, 3)))
    assert type(caught.value).__name__ == "LawBroken"


def test_every_law_has_a_reducer_that_breaks_it():
    assert {law for _, law, _ in BREAKERS} == {law.name for law in REDUCER_LAWS}


def test_the_unbroken_broken_reducer_keeps_every_law():
    assert broken_laws(Broken()) == {}


def test_an_error_of_the_reducer_is_a_broken_law():
    class Raises(Broken):
        def finish(self, x, reduced, comm):
            raise RuntimeError("no")

    assert re.fullmatch(
        r"raised RuntimeError: no \(.*\.py, line \d+\)", broken_laws(Raises(), (2,))["agrees as declared"]
    )


def test_samples_of_the_law_reach_beyond_one_rank():
    torch.manual_seed(0)  # the laws must not depend on the global generator
    before = torch.get_rng_state()
    check_reducer(agsparse(), (2,))
    assert torch.equal(torch.get_rng_state(), before)
