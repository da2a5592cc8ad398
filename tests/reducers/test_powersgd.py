"""PowerSGD against its algorithm in numpy, against torch's own hook, and in the corners where Q can die."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from omnizen import catalog
from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.reducers.contribution import as_tensor
from omnizen.reducers.feedback import feedback
from omnizen.reducers.low_rank import next_query, orthonormal
from omnizen.reducers.powersgd import QUERY, matrix_shape, powersgd
from omnizen.types import Dense, Layout, Sparse, Sparsity, State, Step

LAYOUT = Layout.of([("bias", (7,)), ("conv", (16, 4, 3, 3)), ("fc", (40, 30))])


def gradient(rank, n, shape=(40, 30)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * n + rank))


def reduce_all(reducer, inputs, states, n=0):
    def body(comm):
        return reducer.start(inputs[comm.rank], states[comm.rank], comm, Step(n, shared_seed=3, name="x")).wait()

    return run_ranks(len(inputs), body)


def numpy_steps(grads, query, steps):
    """Algorithms 1 and 2 of the paper on the mean matrix, in which every step is linear."""
    q, error, values = query.double().numpy(), 0.0, []
    for n in range(steps):
        m = np.mean([g.double().numpy() for g in grads[n]], 0) + error
        p, _ = np.linalg.qr(m @ q)
        q = m.T @ p
        values.append(p @ q.T)
        error = m - values[-1]
    return values


@pytest.mark.parametrize("rank", [1, 3])
def test_equals_the_paper_s_algorithm(rank):
    reducer, size, steps = feedback(powersgd(rank)), 3, 6
    grads = [[gradient(r, n).double() for r in range(size)] for n in range(steps)]
    states = [reducer.init(Dense(grads[0][0])) for _ in range(size)]
    expected = numpy_steps(grads, states[0].extra[f"inner.{QUERY}."], steps)
    for n in range(steps):
        results = reduce_all(reducer, [Dense(g) for g in grads[n]], states, n)
        states = [r.state for r in results]
        for result in results:
            np.testing.assert_allclose(result.value.values.numpy(), expected[n], rtol=1e-9, atol=1e-9)


def test_a_matrix_of_low_rank_arrives_whole_from_the_second_step_on():
    rng = torch.Generator().manual_seed(0)
    left, right = torch.randn(40, 2, generator=rng), torch.randn(2, 30, generator=rng)
    reducer = powersgd(2)
    state = reducer.init(Dense(left @ right))
    for n in range(2):
        (done,) = reduce_all(reducer, [Dense(left @ right)], [state], n)
        state = done.state
    torch.testing.assert_close(done.value.values, left @ right, rtol=1e-4, atol=1e-4)


def test_each_tensor_of_a_flat_buffer_is_its_own_matrix():
    reducer, size = powersgd(2), 3
    flats = [torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    together = reduce_all(
        reducer, [Dense(f, LAYOUT) for f in flats], [reducer.init(Dense(flats[0], LAYOUT))] * size
    )
    for slot in LAYOUT.slots:
        alone = Layout.of([(slot.name, slot.shape)])
        parts = [Dense(LAYOUT.view(f, slot).reshape(-1), alone) for f in flats]
        apart = reduce_all(reducer, parts, [reducer.init(parts[0])] * size)
        got = LAYOUT.view(together[0].value.values, slot)
        torch.testing.assert_close(got, apart[0].value.values.view(slot.shape))
    mean = torch.stack(flats).mean(0)
    torch.testing.assert_close(together[0].value.values[:7], mean[:7])  # a vector travels whole
    conv = LAYOUT.view(together[0].value.values, LAYOUT.slots[1]).view(16, 36)
    assert torch.linalg.matrix_rank(conv) == 2
    assert set(together[0].state.extra) == {f"{QUERY}.conv", f"{QUERY}.fc"}


def test_all_matrices_share_two_messages():
    def body(comm):
        flat = torch.ones(LAYOUT.numel)
        reducer = powersgd(2)
        reducer.start(Dense(flat, LAYOUT), reducer.init(Dense(flat, LAYOUT)), comm, Step(0)).wait()
        return comm.reading().traffic

    seen = run_ranks(4, body, wrap=Metered)
    first, second = 7 + 2 * (16 + 40), 2 * (36 + 30)
    assert seen[0].rx_bytes == 1.5 * 4 * (first + second)
    assert seen[0].rounds == 2 * 2 * 3


@pytest.mark.parametrize(
    ("shape", "rank", "shrinks"),
    [((100, 100), 4, True), ((100, 8), 4, False), ((7,), 1, False), ((), 1, False), ((16, 4, 3, 3), 2, True)],
)
def test_what_is_worth_factoring(shape, rank, shrinks):
    assert powersgd(rank).shrinks(shape) is shrinks
    x = Dense(torch.ones(shape))
    (done,) = reduce_all(powersgd(rank), [x], [powersgd(rank).init(x)])
    assert done.value.values.shape == torch.Size(shape)


def test_scalars_are_matrices_of_one_element():
    assert matrix_shape(()) == (1, 1)
    assert matrix_shape((5,)) == (5, 1)


def test_a_query_that_died_is_drawn_anew():
    """With a gradient of zeros Q becomes zero, and with it every P that follows."""
    reducer = powersgd(2)
    x = torch.zeros(40, 30)
    state = reducer.init(Dense(x))
    for n in range(3):
        (done,) = reduce_all(reducer, [Dense(x)], [state], n)
        state = done.state
        assert not done.value.values.any()
    x[-1, -1] = 5.0  # where no leading column would look
    for n in range(3, 5):
        (done,) = reduce_all(reducer, [Dense(x)], [state], n)
        state = done.state
    torch.testing.assert_close(done.value.values, x, rtol=1e-4, atol=1e-4)


def test_dependent_columns_are_replaced_by_the_same_ones_on_all_ranks():
    found = torch.ones(6, 3)
    a, b = (next_query(found, torch.zeros(6, 3), Step(2, 5, "w")) for _ in range(2))
    assert torch.equal(a, b)
    torch.testing.assert_close(a.T @ a, torch.eye(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(a[:, 0].abs(), torch.full((6,), 6**-0.5))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [Dense, Sparse])
def test_what_is_not_finite_is_seen_once_and_poisons_nothing(bad, kind):
    reducer, size = feedback(powersgd(2)), 2

    def given(rank, n):
        values = gradient(rank, n)
        if n == 1 and rank == 1:
            values[3, 4] = bad
        return Dense(values) if kind is Dense else Sparse(torch.arange(40), values, 40)

    states = [reducer.init(given(0, 0))] * size
    states = [reducer.init(given(r, 0)) for r in range(size)]
    for n in range(4):
        results = reduce_all(reducer, [given(r, n) for r in range(size)], states, n)
        states = [r.state for r in results]
        finite = [bool(torch.isfinite(as_tensor(r.value)).all()) for r in results]
        assert finite == [n != 1] * size
        assert all(torch.isfinite(t).all() for s in states for t in (*s.slots.values(), *s.extra.values()))


def test_feedback_sends_everything_in_the_end():
    reducer, size, steps = feedback(powersgd(1)), 2, 60
    x = [Dense(gradient(r, 0, (24, 20))) for r in range(size)]
    states = [reducer.init(x[r]) for r in range(size)]
    total = torch.zeros(24, 20)
    for n in range(steps):
        results = reduce_all(reducer, x, states, n)
        states = [r.state for r in results]
        total += results[0].value.values
    mean = (x[0].values + x[1].values) / 2
    off = (total / steps - mean).norm() / mean.norm()
    without, _ = reduce_all(powersgd(1), x, [powersgd(1).init(x[0])] * size)
    assert off < 0.25 < (without.value.values - mean).norm() / mean.norm()


def rows(rank, n, num_rows=200, width=32, k=20):
    rng = torch.Generator().manual_seed(1000 * n + rank)
    indices = torch.randperm(num_rows, generator=rng)[:k].sort().values
    return Sparse(indices, torch.randn(k, width, generator=rng), num_rows)


def test_rows_give_what_the_whole_matrix_gives():
    """The rows of P that nobody touched are zero: not sending them loses nothing."""
    size, reducer = 3, powersgd(2)
    sparse = [rows(r, 0) for r in range(size)]
    query = reducer.init(sparse[0]).extra[QUERY]
    thin = reduce_all(reducer, sparse, [State(extra={QUERY: query})] * size)
    dense = [Dense(x.to_dense()) for x in sparse]
    whole = reduce_all(reducer, dense, [State(extra={f"{QUERY}.": query})] * size)
    for a, b in zip(thin, whole, strict=True):
        torch.testing.assert_close(a.value.to_dense(), b.value.values, rtol=1e-5, atol=1e-6)
        assert set(a.sent.indices.tolist()) <= set(a.value.indices.tolist())
    assert torch.equal(thin[1].sent.indices, sparse[1].indices)


def test_rows_owe_nothing_where_they_were_not_touched():
    size, reducer = 4, feedback(powersgd(2))
    x = [rows(r, 0) for r in range(size)]
    results = reduce_all(reducer, x, [reducer.init(x[r]) for r in range(size)])
    for r in range(size):
        residual = results[r].state.slots["residual"]
        touched = torch.zeros(200, dtype=torch.bool)
        touched[x[r].indices] = True
        assert residual[touched].any()
        assert not residual[~touched].any()


def test_no_rows_anywhere_and_fewer_rows_than_the_rank():
    for lengths in ((0, 0), (0, 1), (2, 1)):
        x = [rows(r, 0, k=k) for r, k in enumerate(lengths)]
        results = reduce_all(powersgd(4), x, [powersgd(4).init(x[0])] * 2)
        mean = sum(part.to_dense() for part in x) / 2
        for result in results:  # r directions hold up to r rows exactly
            torch.testing.assert_close(result.value.to_dense(), mean, rtol=1e-5, atol=1e-6)
            assert result.state.extra[QUERY].shape == (32, 4)


def test_bytes_of_the_language_model_s_table():
    """50,000 x 200 words, 1,100 touched of each of 8 ranks: 40 MB dense, 6 MB as rows, 0.18 MB here."""
    pattern = Sparsity(50_000, 200, 0.022, {1: 1.0, 8: 5.2})
    assert catalog.reducer("powersgd").traffic(pattern, 8).rx_bytes == 7 * (1100 * 20 + 24 + 200 * 16)
    assert catalog.reducer("agsparse").traffic(pattern, 8).rx_bytes == 7 * (1100 * 804 + 16)


def test_refuses_a_rank_that_is_none():
    for rank in (0, -1, 1.5, True):
        with pytest.raises(UserError, match="rank must be a whole number of 1 or more"):
            powersgd(rank)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_bases_are_orthonormal(dtype):
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    basis = orthonormal(x if dtype == torch.float64 else x.float())
    torch.testing.assert_close(basis.T @ basis, torch.eye(4, dtype=basis.dtype), rtol=0, atol=1e-5)
    assert orthonormal(torch.zeros(5, 2)).shape == (5, 2)
    assert orthonormal(torch.zeros(1, 2)).shape == (1, 1)


def teacher(seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(512, 48, generator=rng), torch.randn(48, 40, generator=rng)


def losses_of(model, step, steps=200):
    x, w = teacher(0)
    y = x @ w
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    out = []
    for n in range(steps):
        batch = slice((n * 64) % 512, (n * 64) % 512 + 64)
        optimizer.zero_grad()
        loss = (model(x[batch]) - y[batch]).square().mean()
        loss.backward()
        step(model, n)
        optimizer.step()
        out.append(float(loss.detach()))
    return out


def small_model():
    torch.manual_seed(0)
    return nn.Linear(48, 40, bias=False)


def test_converges_like_torch_s_own_hook():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        theirs = DistributedDataParallel(small_model())
        state = hook.PowerSGDState(process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        theirs.register_comm_hook(state, hook.powerSGD_hook)
        expected = losses_of(theirs, lambda model, n: None)
    finally:
        dist.destroy_process_group()
    reducer = feedback(powersgd(2))
    kept = {"state": reducer.init(Dense(small_model().weight.detach()))}

    def step(model, n):
        (done,) = reduce_all(reducer, [Dense(model.weight.grad)], [kept["state"]], n)
        kept["state"] = done.state
        model.weight.grad = done.value.values

    ours = losses_of(small_model(), step)
    assert np.mean(ours[-8:]) < 1.3 * np.mean(expected[-8:])
    assert np.mean(ours[-8:]) < 1e-4 * ours[0]
