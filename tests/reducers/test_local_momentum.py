"""Momentum before compression: DGC, SBC and detached error feedback, step by step against plain loops."""

import pytest
import torch

from omnizen import catalog
from omnizen.comm.threads import run_ranks
from omnizen.errors import Incompatible, UserError
from omnizen.reducers.dense import dense
from omnizen.reducers.feedback import RESIDUAL
from omnizen.reducers.gathered import gathered
from omnizen.reducers.local_momentum import MOMENTUM, local_momentum
from omnizen.reducers.selected import selected
from omnizen.reducers.two_way import two_way
from omnizen.types import Dense, Sparse, Step

NUMEL, SIZE = 60, 3


def gradient(rank, n):
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * n + rank))


def train(reducer, steps, grads=gradient, size=SIZE):
    def body(comm):
        state, out = reducer.init(Dense(grads(0, 0))), []
        for n in range(steps):
            done = reducer.start(Dense(grads(comm.rank, n)), state, comm, Step(n, 1, "w")).wait()
            state = done.state
            value = done.value
            out.append(value.to_dense().view(-1) if isinstance(value, Sparse) else value.values.clone())
        return out, state

    return run_ranks(size, body)


def top(x, k):
    kept = torch.zeros_like(x)
    rows = x.abs().topk(k).indices
    kept[rows] = x[rows]
    return kept


def test_dgc_equals_the_paper_s_loop():
    """Lin et al., algorithm 4 with vanilla momentum, and clipping by norm before it."""
    steps, k, limit = 8, 6, 5.0
    u, v = [torch.zeros(NUMEL) for _ in range(SIZE)], [torch.zeros(NUMEL) for _ in range(SIZE)]
    expected = []
    for n in range(steps):
        average = torch.zeros(NUMEL)
        for rank in range(SIZE):
            g = gradient(rank, n)
            g = g * min(1.0, limit / float(g.norm()))
            u[rank] = 0.9 * u[rank] + g
            v[rank] = v[rank] + u[rank]
            sent = top(v[rank], k)
            v[rank] = torch.where(sent != 0, 0.0, v[rank])
            u[rank] = torch.where(sent != 0, 0.0, u[rank])
            average += sent / SIZE
        expected.append(average)
    ranks = train(catalog.reducer("dgc", density=0.1, clip_norm=limit), steps)
    for got, want in zip(ranks[0][0], expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    for rank, (_, state) in enumerate(ranks):
        torch.testing.assert_close(state.slots[RESIDUAL], v[rank], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(state.slots[MOMENTUM], u[rank], rtol=1e-5, atol=1e-6)


def test_sbc_keeps_the_rounding_of_its_one_number_and_masks_momentum():
    ranks = train(catalog.reducer("sbc", density=0.1), 1)
    (value, *_), _ = ranks[0]
    for rank, (_, state) in enumerate(ranks):
        owed, momentum, g = state.slots[RESIDUAL], state.slots[MOMENTUM], gradient(rank, 0)
        sent = g - owed
        places = momentum == 0
        assert places.sum() == 6
        assert sent[places].unique().numel() <= 2  # one number, up to the last bit of a difference
        assert torch.equal(momentum[~places], g[~places])
        value = value - sent / SIZE
    assert value.abs().max() < 1e-6


def test_without_masks_what_arrives_is_momentum_sgd():
    """The sum over all steps of what arrived and is owed equals that of momentum at full density."""
    reducer = local_momentum(selected(catalog.selector("random-block", density=0.1), dense()), 0.9)
    ranks = train(reducer, 20)
    arrived = sum(ranks[0][0])
    owed = sum(state.slots[RESIDUAL] for _, state in ranks) / SIZE
    momentum, whole = torch.zeros(NUMEL), torch.zeros(NUMEL)
    for n in range(20):
        momentum = 0.9 * momentum + sum(gradient(rank, n) for rank in range(SIZE)) / SIZE
        whole += momentum
    torch.testing.assert_close(arrived + owed, whole, rtol=0, atol=1e-4)


def test_the_density_of_dgc_warms_up():
    reducer = catalog.reducer("dgc", density=0.05, warmup_steps=2)
    ((values, _),) = train(reducer, 6, size=1)
    assert [int((v != 0).sum()) for v in values] == [15, 15, 4, 4, 3, 3]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_value_does_not_stay_in_momentum_or_residual(bad):
    def grads(rank, n):
        g = gradient(rank, n)
        if n == 0 and rank == 1:
            g[7] = bad
        return g

    for name in ("dgc", "sbc", "def-random-block"):
        ranks = train(catalog.reducer(name), 3, grads)
        for _, state in ranks:
            assert torch.isfinite(state.slots[RESIDUAL]).all()
            assert torch.isfinite(state.slots[MOMENTUM]).all()
        assert torch.isfinite(ranks[0][0][2]).all()


@pytest.mark.parametrize("codec", ["ternary", "sign", "qsgd"])
def test_two_way_loses_nothing_in_the_end(codec):
    steps = 25
    ranks = train(catalog.WRAPPERS["feedback"].make(two_way(catalog.codec(codec))), steps)
    given = sum(gradient(rank, n) for rank in range(SIZE) for n in range(steps)) / SIZE
    owed = sum(state.slots[RESIDUAL] for _, state in ranks) / SIZE
    torch.testing.assert_close(sum(ranks[0][0]) + owed, given, rtol=0, atol=1e-4)
    for values, _ in ranks[1:]:
        assert all(torch.equal(a, b) for a, b in zip(values, ranks[0][0], strict=True))


def test_refusals():
    class Lossy:
        name, takes, conserves = "lossy", (Dense,), False
        start = None

    with pytest.raises(
        Incompatible, match="LocalMomentum needs a reducer that conserves its input; lossy does not"
    ):
        local_momentum(Lossy())
    with pytest.raises(Incompatible, match="LocalMomentum needs a reducer of dense tensors; agsparse does not"):
        local_momentum(catalog.reducer("agsparse"))
    with pytest.raises(UserError, match=r"momentum must be below 1, got 1"):
        local_momentum(dense(), momentum=1)
    with pytest.raises(UserError, match=r"detached must be in \[0, 1\], got 2"):
        local_momentum(dense(), detached=2)
    with pytest.raises(UserError, match="clip_norm must be above 0, got 0"):
        local_momentum(dense(), clip_norm=0)
    with pytest.raises(Incompatible, match="TwoWay needs a codec from Dense to Packed; coo does not"):
        two_way(catalog.codec("coo"))
    with pytest.raises(Incompatible, match="Gathered needs a codec"):
        gathered(catalog.codec("rows"))
