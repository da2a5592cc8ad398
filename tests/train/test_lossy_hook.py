"""Lossy schemes as a hook of DistributedDataParallel."""

import itertools

import torch
from torch import nn

from omnizen.reducers.feedback import RESIDUAL
from omnizen.train.ddp_short import ShortGradients
from omnizen.train.router import make_reducer
from omnizen.types import Dense, Sparse, Step
from tests.train.helpers import run_ranks


def test_the_ddp_hook_keeps_memory_by_parameter_whatever_the_buckets():
    shapes = [(60, 40), (60,), (30, 40)]

    def body(comm):
        params = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
        short = ShortGradients(make_reducer("topk", "float32"))
        out = []
        for n in range(3):
            rng = torch.Generator().manual_seed(10 * n + comm.rank)
            grads = [torch.randn(shape, generator=rng).view(-1) for shape in shapes]
            for bucket in ([0, 1, 2],) if n == 0 else ([0], [1, 2]):
                flat = torch.cat([grads[i] for i in bucket])
                out.append(short.average(flat, [params[i] for i in bucket], comm, Step(n)))
        return out, {tuple(u.params[0].shape): u.state.slots[RESIDUAL] for u in short._units.values()}

    ranks = run_ranks(2, body)
    for (first, _), (second, _) in itertools.pairwise(ranks):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    reducer = make_reducer("topk", "float32")

    def alone_one(comm):
        state = reducer.init(Dense(torch.zeros(2400)))
        for n in range(3):
            grad = torch.randn(60, 40, generator=torch.Generator().manual_seed(10 * n + comm.rank)).view(-1)
            done = reducer.start(Dense(grad), state, comm, Step(n)).wait()
            state = done.state
        assert isinstance(done.value, Sparse)
        return done.value.to_dense().view(-1), state.slots[RESIDUAL]

    for (out, kept), (value, residual) in zip(ranks, run_ranks(2, alone_one), strict=True):
        assert torch.equal(out[3], value)
        assert torch.equal(kept[(60, 40)], residual)
