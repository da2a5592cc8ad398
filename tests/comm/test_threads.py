import pytest
import torch

from omnizen.comm.threads import run_ranks
from omnizen.errors import PeerLost


def test_all_to_all_is_a_transpose() -> None:
    got = run_ranks(3, lambda c: c.all_to_all([[torch.tensor([10 * c.rank + j])] for j in range(3)]).wait())
    assert [[int(p[0]) for p in row] for row in got] == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]


def test_a_rank_that_ends_is_named_by_those_who_wait() -> None:
    def body(comm):
        comm.step = 7
        if comm.rank == 1:
            return None
        with pytest.raises(PeerLost, match=r"rank \d lost rank 1 at step 7"):
            comm.barrier()
        return "told"

    assert run_ranks(3, body) == ["told", None, "told"]
