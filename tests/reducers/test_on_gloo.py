"""The reducers on gloo's sockets: the same bits and the same bytes as on threads."""

import torch

from omnizen import catalog
from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.comm.torch_pg import thread_gloo_ranks
from omnizen.reducers.contribution import as_tensor
from omnizen.types import Sparse, Step

SIZE = 3
CASES = [(name, values) for name in catalog.schemes("row-sparse") for values in ("float32", "bfloat16")]


def body(comm):
    comm = Metered(comm)
    results = []
    for name, values in CASES:
        for k in (9, 0 if comm.rank == 1 else 4, 0):
            rng = torch.Generator().manual_seed(comm.rank)
            rows = torch.randperm(20, generator=rng)[:k].sort().values
            x = Sparse(rows, torch.randn(k, 3, generator=rng), 20)
            reducer = catalog.reducer(name, values=values)
            before = comm.reading()
            reduced = reducer.start(x, reducer.init(x), comm, Step(0)).wait()
            results.append((name, values, as_tensor(reduced.value), (comm.reading() - before).traffic))
    return results


def test_gloo_equals_threads():
    on_threads, on_gloo = run_ranks(SIZE, body), thread_gloo_ranks(SIZE, body)
    for threads, gloo in zip(on_threads, on_gloo, strict=True):
        for (name, values, expected, traffic), (_, _, got, seen) in zip(threads, gloo, strict=True):
            # gloo's ring adds in another order than rank order; everything else adds where we say.
            tolerance = 1e-6 if name in ("dense", "omnireduce") and values == "float32" else 0.0
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, msg=f"{name} {values}")
            assert seen == traffic, (name, values)
