"""Wrong arguments: one sentence at once on the rank that gave them, with every kind of comm."""

from __future__ import annotations

import pytest
import torch

from omnizen.comm.links import Links
from omnizen.comm.meter import Metered
from omnizen.comm.paced import PacedLink
from omnizen.comm.simulated import simulate_ranks
from omnizen.comm.threads import ThreadWorld, run_ranks
from omnizen.comm.torch_pg import thread_gloo_ranks
from omnizen.errors import UserError

ONE = torch.ones(1)


def simulated(size, body):
    return simulate_ranks(size, body, links=Links.uniform(size, bandwidth_bytes_per_s=1e6))


KINDS = [run_ranks, thread_gloo_ranks, simulated]


@pytest.mark.parametrize("on", KINDS)
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.exchange({7: [ONE]}, [], [ONE]), r"exchange: ranks of .* are 0\.\.1, each once; got 7"),
        (lambda c: c.exchange({}, [7], [ONE]), "exchange: .*got 7"),  # gloo itself ends the process here
        (lambda c: c.exchange({}, [-1], [ONE]), "exchange: .*got -1"),
        (lambda c: c.exchange({}, [0, 0], [ONE]), "exchange: .*got 0"),
        (lambda c: c.exchange({0: [[1.0]]}, [], [ONE]), "exchange sends lists of strided tensors, got list"),
        (lambda c: c.sub([0, 9], "x"), "sub: .*got 9"),
        (lambda c: c.sub([1, 1], "x"), "sub: .*got 1"),
        (lambda c: c.all_gather(ONE), "all_gather sends lists of strided tensors, got Tensor"),
        (lambda c: c.all_gather([ONE.to_sparse()]), "got torch.sparse_coo; send a sparse tensor as its indices"),
        (lambda c: c.all_reduce(ONE.to_sparse()), "all_reduce sends .*torch.sparse_coo"),
        (lambda c: c.all_to_all([[ONE], [None]]), "all_to_all sends .*got NoneType"),
        (lambda c: c.all_to_all([[ONE]]), "one entry for each of 2 ranks, got 1"),
    ],
)
def test_calls(on, call, said: str) -> None:
    def body(comm) -> None:
        for each in (comm, Metered(comm)):
            with pytest.raises(UserError, match=said):
                call(each)
        assert comm.all_reduce(ONE).wait().item() == 2  # nothing was sent, so the comm still works

    on(2, body)


@pytest.mark.parametrize("on", [run_ranks, thread_gloo_ranks])
def test_tensors_that_are_conjugated_or_negated_lazily(on) -> None:
    def body(comm):
        z = torch.tensor([1 + 2j, 3j])
        parts = [z.conj(), z.conj().imag]
        assert parts[0].is_conj()
        assert parts[1].is_neg()
        gathered = [[part.tolist() for part in got] for got in comm.all_gather(parts).wait()]
        return gathered, comm.all_reduce(z.conj()).wait().tolist()

    for gathered, total in on(2, body):
        assert gathered == [[[1 - 2j, -3j], [-2, -3]]] * 2
        assert total == [2 - 4j, -6j]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThreadWorld(2).comm(5),
        lambda: ThreadWorld(2).comm(-1),
        lambda: ThreadWorld(0),
        lambda: ThreadWorld(2, timeout_s=-1),
        lambda: ThreadWorld(2, timeout_s=float("nan")),
        lambda: PacedLink(float("nan")),
        lambda: PacedLink("fast"),
    ],
)
def test_worlds_and_links(make) -> None:
    with pytest.raises(UserError, match="got"):
        make()
