"""Compaction to a shared support: exact whatever wakes up, silent about it never."""

import pytest
import torch

from omnizen import catalog
from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.errors import Incompatible, UserError
from omnizen.laws.reducer import check_reducer
from omnizen.reducers.agsparse import agsparse
from omnizen.reducers.compact import FALLBACKS, PLACES, SUPPORT, compact, ternary_scheme
from omnizen.reducers.shared_scale import shared_scale
from omnizen.types import Dense, Step

NUMEL = 1000


def support(every=5):
    kept = torch.zeros(NUMEL, dtype=torch.bool)
    kept[::every] = True
    return kept


def masked(rank, n, kept=None):
    values = torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * n + rank))
    return values * (support() if kept is None else kept)


def train(reducer, steps, given, size=3, state=None):
    """Return each step's results and each rank's bytes in it."""

    def body(comm):
        now = reducer.init(Dense(given(0, 0))) if state is None else state
        out = []
        for n in range(steps):
            before = comm.reading()
            done = reducer.start(Dense(given(comm.rank, n)), now, comm, Step(n, shared_seed=1, name="x")).wait()
            now = done.state
            out.append((done, (comm.reading() - before).traffic.rx_bytes))
        return out

    return run_ranks(size, body, wrap=Metered)


def mean(given, n, size=3):
    return torch.stack([given(r, n) for r in range(size)]).mean(0)


def test_observes_then_sends_the_support_alone():
    ranks = train(compact(settle=2), 5, masked)
    for n in range(5):
        for results in ranks:
            torch.testing.assert_close(results[n][0].value.values, mean(masked, n))
    ring = 2 * 2 / 3 * 4
    spent = [results[1] for results in ranks[0]]
    assert spent == pytest.approx([ring * NUMEL] * 3 + [ring * 201] * 2)  # 200 elements and one that asks for more
    assert compact().compact_traffic(200, 3).rx_bytes == pytest.approx(spent[-1])


def test_what_wakes_up_after_the_freeze_is_not_lost():
    """The authors' hook drops it for ever: a rare row's gradient was zero in the ten steps that were watched."""
    woken = 501  # outside of the support

    def given(rank, n):
        x = masked(rank, n)
        if rank == 1 and n in (5, 9):
            x[woken] = 7.0
        return x

    ranks = train(compact(settle=2), 12, given)
    for n in range(12):
        for results in ranks:
            torch.testing.assert_close(results[n][0].value.values, mean(given, n))
    state = ranks[2][-1][0].state
    assert state.scalars[FALLBACKS] == 1  # at step 9 the element is part of the support
    assert state.slots[SUPPORT].nonzero().view(-1).tolist() == sorted([*range(0, NUMEL, 5), woken])


def test_nan_outside_of_the_support_arrives():
    reducer = compact()
    known = reducer.with_support(reducer.init(Dense(torch.zeros(NUMEL))), support())

    def given(rank, n):
        x = masked(rank, n)
        if rank == 2:
            x[1] = float("nan")
        return x

    for results in train(reducer, 1, given, state=known):
        assert torch.isnan(results[0][0].value.values).nonzero().view(-1).tolist() == [1]


def test_a_support_from_masks_is_used_at_once_and_covers_what_lies_behind():
    reducer = compact()
    state = reducer.with_support(reducer.init(Dense(torch.zeros(NUMEL))), support()[: NUMEL - 3])
    assert state.extra[PLACES].tolist() == [*range(0, NUMEL - 3, 5), NUMEL - 3, NUMEL - 2, NUMEL - 1]
    ranks = train(reducer, 1, masked, state=state)
    torch.testing.assert_close(ranks[0][0][0].value.values, mean(masked, 0))
    assert ranks[0][0][1] == pytest.approx(4 / 3 * 4 * (len(state.extra[PLACES]) + 1))


@pytest.mark.parametrize("size", [2, 7, 8])
def test_ternary_sums_never_overflow_and_are_unbiased(size):
    reducer, x = ternary_scheme(clip=None), torch.tensor([1.0, -0.25, 0.0, 0.5] * 5)
    known = reducer.reducer.with_support(reducer.init(Dense(x)), x != 0)
    steps = 150
    ranks = train(reducer, steps, lambda rank, n: x, size, known)
    values = torch.stack([results[0].value.values for results in ranks[0]])
    assert values.abs().max() <= 1.0
    assert (values * size).frac().abs().max() < 1e-4
    # one draw's deviation is at most 0.5, there are size * steps * 5 of each value
    assert (values.mean(0) - x).view(5, 4).mean(0).abs().max() < 5 * 0.5 / (size * steps * 5) ** 0.5


def test_ternary_sends_half_a_byte_an_element():
    reducer = ternary_scheme()
    known = reducer.reducer.with_support(reducer.init(Dense(torch.zeros(NUMEL))), support())
    ranks = train(reducer, 1, masked, 4, known)
    flag_and_scale = 1.5 * 4 + 3 * (4 + 8)
    assert ranks[0][0][1] == pytest.approx(1.5 * 200 / 2 + flag_and_scale)


def test_lossy_rest_counts_as_sent():
    reducer = compact(shared_scale())
    known = reducer.with_support(reducer.init(Dense(torch.zeros(NUMEL))), support(10))
    ranks = train(reducer, 1, masked, 3, known)
    sent = torch.stack([results[0][0].sent.values for results in ranks]).mean(0)
    torch.testing.assert_close(ranks[0][0][0].value.values, sent, rtol=0, atol=1e-6)
    for rank, results in enumerate(ranks):
        outside = ~support(10)
        torch.testing.assert_close(results[0][0].sent.values[outside], masked(rank, 0)[outside])


def test_a_stable_support_keeps_the_laws():
    assert {v.law: v.reason for v in check_reducer(compact(settle=1), (1, 3)) if not v.held} == {}


def test_settings_are_checked():
    with pytest.raises(Incompatible, match="a reducer of dense tensors"):
        compact(agsparse())
    with pytest.raises(UserError, match="settle must not be negative"):
        compact(settle=-1)
    with pytest.raises(UserError, match="at most 4 elements"):
        compact().with_support(compact().init(Dense(torch.zeros(4))), torch.ones(5, dtype=torch.bool))
    assert catalog.reducer("compact").exact
    assert not catalog.reducer("compact-ternary").exact
