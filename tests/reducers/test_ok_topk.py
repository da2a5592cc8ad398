"""Ok-Topk against the steps written out, and what it moves."""

import pytest
import torch

from omnizen import catalog
from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.reducers.contribution import as_tensor
from omnizen.reducers.feedback import feedback
from omnizen.reducers.ok_topk import ok_topk
from omnizen.types import Dense, Step


def gradient(rank, n=0, numel=1000, hot=None):
    x = torch.randn(numel, generator=torch.Generator().manual_seed(1000 * rank + n))
    if hot is not None:
        x[hot:] *= 1e-3
    return x


def run(reducer, size, steps, grads):
    """Return for each rank and step the result and what was metered."""

    def body(comm):
        state, found = reducer.init(Dense(grads(comm.rank, 0))), []
        for n in range(steps):
            before = comm.reading()
            reduced = reducer.start(Dense(grads(comm.rank, n)), state, comm, Step(n, name="x")).wait()
            state = reduced.state
            found.append((reduced, comm.reading() - before))
        return found

    return run_ranks(size, body, wrap=Metered)


def keep(x, k):
    kept = torch.zeros_like(x)
    at = x.abs().topk(k).indices
    kept[at] = x[at]
    return kept


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_a_step_with_exact_thresholds_is_the_top_k_of_the_sum_of_top_ks(size):
    k = 20
    local = [keep(gradient(rank), k) for rank in range(size)]
    expected = keep(sum(local[1:], local[0].clone()), k)
    for rank, steps in enumerate(run(ok_topk(k / 1000), size, 1, lambda rank, n: gradient(rank))):
        reduced, _ = steps[0]
        torch.testing.assert_close(as_tensor(reduced.value).view(-1), expected / size, rtol=1e-6, atol=1e-7)
        sent = as_tensor(reduced.sent).view(-1)
        assert torch.equal(sent, torch.where(expected != 0, local[rank], 0.0))


def test_between_exact_steps_thresholds_are_reused_and_corrected():
    size, k = 4, 50
    found = run(ok_topk(k / 1000, reuse=3, repartition=6), size, 7, gradient)
    calls = [sum(reading.calls.values()) for _, reading in found[0]]
    assert calls == [6, 4, 4, 5, 4, 4, 6], "regions cost one call, thresholds one"
    for reduced, _ in found[0]:
        kept = reduced.value.indices.numel()
        assert 0.5 * k < kept < 1.6 * k
    for n in (1, 2):  # the first step's thresholds
        limit = float(as_tensor(found[0][0][0].value).abs()[as_tensor(found[0][0][0].value) != 0].min())
        values = as_tensor(found[0][n][0].value).abs()
        assert float(values[values != 0].min()) >= limit / 1.02


def test_a_threshold_that_has_become_too_low_is_raised_within_the_step():
    k = 50
    growing = lambda rank, n: gradient(rank, n) * (1.0 + n)  # noqa: E731
    found = run(ok_topk(k / 1000, reuse=100), 2, 2, growing)
    follows = found[0][1][0].state.scalars["local"]
    assert follows == pytest.approx(float(growing(0, 1).abs().topk(k).values[-1])), (
        "searched: raising was not enough"
    )
    slightly = run(ok_topk(k / 1000, reuse=100), 2, 2, lambda rank, n: gradient(rank) * (1.0 + 0.1 * n))
    raised = slightly[0][1][0].state.scalars["local"] / float(gradient(0).abs().topk(k).values[-1])
    assert any(raised == pytest.approx(1.03**i * (1.012 if more else 1)) for i in range(1, 6) for more in (0, 1))


def test_growing_residuals_do_not_open_the_gates():
    """The same gradient in each step, with feedback: what is owed doubles in the second step."""
    size, k, numel = 8, 200, 20_000
    found = run(feedback(ok_topk(k / numel)), size, 6, lambda rank, n: gradient(rank, 0, numel))
    for n in range(6):
        assert max(steps[n][1].rx_bytes for steps in found) < 9 * k * 8, n


def test_bytes_do_not_grow_with_ranks():
    """At most 6 k (n-1)/n elements with indices as in the paper's bound; top-k by all-gather takes (n - 1) k."""
    k, numel, headers = 200, 20_000, 8
    received = {}
    for size in (2, 4, 8, 16):
        found = run(ok_topk(k / numel), size, 2, lambda rank, n: gradient(rank, n % 1, numel))
        received[size] = max(steps[1][1].rx_bytes for steps in found) - 7 * headers * (size - 1)
        assert received[size] <= 6 * k * (size - 1) / size * 8 * 1.05
    assert received[16] < 2.2 * received[2]
    assert received[16] < 0.3 * 15 * k * 8


def test_regions_even_out_skew():
    """All that is large lies in the first twentieth; equal ranges would send all of it to rank 0."""
    size, k, numel = 8, 400, 20_000
    found = run(ok_topk(k / numel), size, 1, lambda rank, n: gradient(rank, n, numel, hot=numel // 20))
    pushed = [
        sum(n for (verb, _), n in steps[0][1].rx.items() if verb == "all_to_all") - 4 * 8 * (size - 1)
        for steps in found
    ]
    assert max(pushed) < 1.4 * (size - 1) / size * k * 8
    ends = found[0][0][0].state.extra["regions"]
    assert ends.numel() == size - 1
    assert int(ends[-1]) < numel // 20


def test_fewer_elements_than_ranks_and_nothing_at_all():
    one = run(ok_topk(0.001), 5, 3, lambda rank, n: gradient(0))
    for reduced, _ in one[0]:
        assert reduced.value.indices.tolist() == [int(gradient(0).abs().argmax())]
    nothing = run(ok_topk(0.01), 3, 2, lambda rank, n: torch.zeros(100))
    assert nothing[0][1][0].value.indices.numel() == 0
    late = run(ok_topk(0.01), 3, 2, lambda rank, n: gradient(rank) * n)
    assert late[0][1][0].value.indices.numel() == 10, "a threshold of nothing is searched again"
    assert run(ok_topk(0.5), 2, 1, lambda rank, n: torch.zeros(0))[0][0][0].value.num_rows == 0


def test_what_is_not_finite_is_passed_on_and_changes_no_threshold():
    def grads(rank, n):
        x = gradient(rank, n)
        if rank == 1 and n == 1:
            x[7], x[8] = float("nan"), float("inf")
        return x

    found = run(ok_topk(0.02, reuse=2), 3, 3, grads)
    bad = as_tensor(found[0][1][0].value).view(-1)
    assert torch.isnan(bad[7])
    assert torch.isinf(bad[8])
    assert torch.isfinite(as_tensor(found[0][2][0].value)).all()
    assert 0 < found[0][1][0].state.scalars["local"] < 10


def test_with_feedback_nothing_is_lost():
    size, steps = 4, 40
    found = run(feedback(ok_topk(0.05, reuse=4, repartition=8)), size, steps, lambda rank, n: gradient(rank, n % 3))
    arrived = sum(as_tensor(reduced.value).view(-1) for reduced, _ in found[0])
    owed = sum(rank_steps[-1][0].state.slots["residual"] for rank_steps in found) / size
    whole = sum(gradient(rank, n % 3) for rank in range(size) for n in range(steps)) / size
    torch.testing.assert_close(arrived + owed, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{"density": 0.0}, {"density": 1.5}, {"reuse": 0}, {"repartition": 1.5}])
def test_settings_that_cannot_be(settings):
    with pytest.raises(UserError, match="ok-topk"):
        catalog.reducer("ok-topk", **settings)
