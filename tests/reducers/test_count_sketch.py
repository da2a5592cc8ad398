"""Heavy elements of an average that no rank sees as heavy, found in a sum of sketches."""

import pytest
import torch

from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.reducers.contribution import as_tensor
from omnizen.reducers.count_sketch import count_sketch
from omnizen.reducers.feedback import feedback
from omnizen.types import Dense, Step


def reduce_all(reducer, xs, states=None, n=0):
    states = states or [reducer.init(x) for x in xs]

    def body(comm):
        step = Step(n, shared_seed=3, name="x")
        return reducer.start(xs[comm.rank], states[comm.rank], comm, step).wait()

    return run_ranks(len(xs), body)


def hidden(size, numel=20_000, heavy=50):
    """Noise that is large on each rank and cancels out in the mean, over small elements that all ranks share."""
    rng = torch.Generator().manual_seed(5)
    signal = torch.zeros(numel)
    signal[torch.randperm(numel, generator=rng)[:heavy]] = 2.0
    noise = [2.0 * torch.randn(numel, generator=rng) for _ in range(size - 1)]
    noise.append(-sum(noise))
    return signal, [signal + each for each in noise]


def test_finds_what_is_heavy_only_in_the_mean():
    signal, xs = hidden(4)
    results = reduce_all(count_sketch(density=50 / 20_000, table=0.5, rows=5), [Dense(x) for x in xs])
    assert all(torch.equal(results[0].value.indices, r.value.indices) for r in results)
    heavy = set(signal.nonzero().view(-1).tolist())
    found = set(results[0].value.indices.tolist())
    assert len(found & heavy) >= 48
    own = set(xs[0].abs().topk(50).indices.tolist())  # what a rank's own top-k would have sent
    assert len(own & heavy) < 10


def test_values_are_the_gradient_s_own():
    xs = [torch.randn(500, generator=torch.Generator().manual_seed(r)) for r in range(3)]
    for rank, done in enumerate(reduce_all(count_sketch(0.1), [Dense(x.view(50, 10)) for x in xs])):
        at = done.value.indices
        torch.testing.assert_close(done.value.values.view(-1), (sum(xs) / 3)[at])
        torch.testing.assert_close(done.sent.values.view(-1), xs[rank][at])


def test_feedback_reaches_every_element():
    reducer = feedback(count_sketch(0.05, table=0.2))
    xs = [Dense(torch.rand(400, generator=torch.Generator().manual_seed(r)) + 0.5) for r in range(2)]
    states, total = [reducer.init(x) for x in xs], torch.zeros(400)
    for n in range(80):
        results = reduce_all(reducer, xs, states, n)
        states = [r.state for r in results]
        total += as_tensor(results[0].value).view(-1)
    mean = (xs[0].values + xs[1].values) / 2
    assert float((total / 80 - mean).abs().max() / mean.max()) < 0.6
    assert (total > 0).all()


def test_nan_is_found():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    x[123] = float("nan")
    (done,) = reduce_all(count_sketch(0.01), [Dense(x)])
    whole = as_tensor(done.value).view(-1)
    assert torch.isnan(whole).nonzero().view(-1).tolist() == [123]


def test_settings_are_checked():
    for settings, said in (({"density": 0}, "density"), ({"table": 1.5}, "fraction"), ({"rows": 0}, "rows must")):
        with pytest.raises(UserError, match=said):
            count_sketch(**settings)
