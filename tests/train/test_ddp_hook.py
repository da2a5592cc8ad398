"""Our reducers as a hook of DistributedDataParallel."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import omnizen as oz
from omnizen.errors import PeerLost, UserError
from omnizen.train.ddp_hook import HookState, hook, reduce
from omnizen.train.router import make_reducer
from omnizen.train.wire import Wire
from omnizen.types import Step
from tests.train import ddp_job
from tests.train.helpers import alone, assert_close, assert_equal, run_ranks
from tests.train.test_torchrun import free_port, torchrun


@pytest.mark.procs
def test_ten_out_of_ten_complete(tmp_path: Path) -> None:
    """Case 15: two and more buckets, and a sparse beside a dense one; where PowerSGD as a hook hangs or aborts."""
    script = str(Path(ddp_job.__file__))
    torchrun(["--nproc-per-node=2", f"--master-port={free_port()}", script, str(tmp_path)])
    for name, build, tolerance in (("layers", ddp_job.layers, 1e-5), ("table", ddp_job.table, 1e-9)):
        first, second = (torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True) for rank in range(2))
        assert_equal(first, second)
        union = [torch.cat(pair) for pair in zip(*(ddp_job.batches(name, r) for r in range(2)), strict=True)]
        assert_close(first, alone(build(), union, ddp_job.loss), tolerance)  # float32 sums in another order


def state_on(comm, scheme: str = "zen-coo") -> HookState:
    return HookState(comm, make_reducer(scheme, "float32"), make_reducer("dense", "float32"), Wire("test"))


@pytest.mark.parametrize("scheme", ["dense", "zen-coo", "zen-bitmap", "omnireduce", "parameter-server"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_buckets_come_back_in_their_own_form(scheme: str, dtype: torch.dtype) -> None:
    def body(comm):
        state = state_on(comm, scheme)
        rows = torch.full((2, 3), 1.0 + comm.rank, dtype=dtype)
        sparse = torch.sparse_coo_tensor([[comm.rank, 4]], rows, (6, 3), check_invariants=False)
        return reduce(state, sparse, Step(0)), reduce(state, rows, Step(0))

    for sparse, dense in run_ranks(2, body):
        assert sparse.is_sparse
        assert sparse.dtype == dense.dtype == dtype
        assert sparse.to_dense()[:, 0].tolist() == [0.5, 1.0, 0, 0, 1.5, 0]
        assert dense[0].tolist() == [1.5] * 3


def test_an_error_reaches_the_future() -> None:
    class Bucket:
        def buffer(self):
            return torch.ones(3)

        def is_last(self):
            return True

    handed_over = threading.Event()

    def body(comm):
        if comm.rank:
            assert handed_over.wait(10)
            return
        state = state_on(comm)
        futures = [hook(state, Bucket()) for _ in range(3)]  # those behind the one that failed must end as well
        handed_over.set()
        for future in futures:
            with pytest.raises(PeerLost):
                future.wait()
        with pytest.raises(PeerLost):
            hook(state, Bucket())

    run_ranks(2, body)


def test_an_unknown_scheme_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'zen-coo'"):
        oz.ddp_hook("zen-co")
    with pytest.raises(UserError, match="did you mean 'zen'"):
        oz.ddp_hook("zenn")


@pytest.mark.parametrize(("options", "said"), [({"process_group": 7}, "got 7"), ({"timeout_s": -1}, "got -1")])
def test_what_is_no_group_or_no_time_is_refused(options, said: str) -> None:
    with pytest.raises(UserError, match=said):
        oz.ddp_hook(**options)
