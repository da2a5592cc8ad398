"""One all-gather for every codec; each tensor of a bucket is packed on its own."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from omnizen import catalog
from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.errors import Incompatible, UserError
from omnizen.laws.reducer import check_reducer
from omnizen.reducers.agsparse import agsparse
from omnizen.reducers.feedback import RESIDUAL, feedback
from omnizen.reducers.gathered import gathered
from omnizen.types import Dense, Layout, Packed, Sparse, Step

LAYOUT = Layout.of([("a", (2, 3)), ("b", (4,)), ("c", ())])


@dataclass(frozen=True)
class Scaled:
    """Signs times the mean magnitude of the tensor, with the step's name in its random choice of one sign."""

    name: ClassVar[str] = "scaled"
    takes = Dense
    gives = Packed
    summable = unbiased = exact = False

    def encode(self, payload, step):
        x = payload.values
        return Packed((x.sign().to(torch.int8).view(-1), x.abs().mean().view(1)), tuple(x.shape), self.name)

    def decode(self, payload):
        signs, scale = payload.streams
        return Dense((signs * scale).view(payload.meta))

    def nbytes(self, pattern):
        size = pattern.num_rows * pattern.width + 4
        return size, size


def reduced(reducer, make, size=3, steps=1):
    def body(comm):
        state = reducer.init(make(comm.rank))
        out = []
        for n in range(steps):
            out.append(reducer.start(make(comm.rank), state, comm, Step(n, 1, "t")).wait())
            state = out[-1].state
        return out

    return run_ranks(size, body)


def values(rank, numel=11):
    return torch.randn(numel, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize(
    "reducer",
    [
        gathered(catalog.codec("coo")),
        gathered(catalog.codec("bitmap", values="bfloat16")),
        gathered(catalog.codec("cast-float16")),
        gathered(Scaled()),
        feedback(gathered(Scaled())),
    ],
    ids=lambda r: r.name,
)
def test_laws(reducer):
    broken = {v.law: v.reason for v in check_reducer(reducer, (1, 2, 3, 5)) if not v.held}
    if "scaled" in reducer.name:  # this test's codec knows nothing of other types and infinities
        broken.pop("keeps shape and type", None)
    assert broken == {}


def test_equals_agsparse_bit_for_bit():
    def make(rank):
        rows = torch.randperm(40, generator=torch.Generator().manual_seed(rank))[:9].sort().values
        return Sparse(rows, torch.randn(9, 2, generator=torch.Generator().manual_seed(rank)), 40)

    for (ours,), (theirs,) in zip(
        reduced(gathered(catalog.codec("coo")), make), reduced(agsparse(), make), strict=True
    ):
        assert torch.equal(ours.value.values, theirs.value.values)
        assert torch.equal(ours.value.indices, theirs.value.indices)
        assert ours.sent is None


def test_each_tensor_of_a_bucket_has_its_own_scale_and_all_travel_in_one_message():
    reducer = gathered(Scaled())
    expected = []
    for slot in LAYOUT.slots:
        parts = [LAYOUT.view(values(rank), slot) for rank in range(3)]
        expected.append(sum(p.sign() * p.abs().mean() for p in parts).view(-1) / 3)
    results = reduced(reducer, lambda rank: Dense(values(rank), LAYOUT))
    for rank, (result,) in enumerate(results):
        torch.testing.assert_close(result.value.values, torch.cat(expected))
        mine = [LAYOUT.view(values(rank), slot) for slot in LAYOUT.slots]
        torch.testing.assert_close(
            result.sent.values, torch.cat([(p.sign() * p.abs().mean()).view(-1) for p in mine])
        )

    def rounds(comm):
        before = comm.reading()
        reducer.start(Dense(values(comm.rank), LAYOUT), reducer.init(None), comm, Step(0)).wait()
        return (comm.reading() - before).traffic.rounds

    assert run_ranks(3, rounds, wrap=Metered) == [3, 3, 3]  # the lengths, and two hops


def test_what_lies_behind_the_last_tensor_stays_zero():
    padded = lambda rank: Dense(torch.cat([values(rank), torch.ones(2)]), LAYOUT)  # noqa: E731
    for (result,) in reduced(gathered(Scaled()), padded):
        assert result.value.values[-2:].tolist() == [0, 0]
        assert result.value.values.numel() == 13


def test_feedback_owes_what_the_signs_left_out():
    results = reduced(feedback(gathered(Scaled())), lambda rank: Dense(values(rank), LAYOUT), steps=6)
    given = 6 * sum(values(rank) for rank in range(3)) / 3
    arrived = sum(r.value.values for r in results[0])
    owed = sum(r[-1].state.slots[RESIDUAL] for r in results) / 3
    torch.testing.assert_close(arrived + owed, given, rtol=0, atol=1e-5)


def test_ranks_draw_their_own_random_numbers():
    class Names(Scaled):
        def encode(self, payload, step):
            names.append(step.name)
            return super().encode(payload, step)

    names = []
    reduced(gathered(Names()), lambda rank: Dense(values(rank), LAYOUT), size=2)
    assert sorted(names) == ["a/0", "a/1", "b/0", "b/1", "c/0", "c/1"]


def test_refusals():
    with pytest.raises(Incompatible, match="Gathered needs a codec from Dense or Sparse to Packed; rows does not"):
        gathered(catalog.codec("rows"))
    with pytest.raises(UserError, match="takes a codec, got 'coo'"):
        gathered("coo")
    with pytest.raises(UserError, match=r"gathered\(coo\) takes a Sparse contribution, got Dense"):
        reduced(gathered(catalog.codec("coo")), lambda rank: Dense(torch.ones(3)), size=1)
