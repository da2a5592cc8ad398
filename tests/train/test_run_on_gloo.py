"""The engine over gloo, between threads of one process."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from omnizen.comm.meter import Metered
from omnizen.comm.torch_pg import thread_gloo_ranks
from omnizen.errors import Disagreement, PeerLost
from tests.train.helpers import alone, assert_close, assert_equal, make_run, sgd, weights


class Net(nn.Module):
    """Two tables, a stack of layers in small buckets, and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.EmbeddingBag(50, 8, sparse=True)
        self.b = nn.Embedding(50, 8, padding_idx=0)
        self.layers = nn.Sequential(*[nn.Linear(8, 8) for _ in range(5)], nn.BatchNorm1d(8))
        self.double()

    def forward(self, ids):
        return self.layers(self.a(ids) + self.b(ids).sum(1)).square().mean() + self.b(ids).square().mean()


@pytest.mark.parametrize("plan", ["dense", "agsparse", "zen-bitmap", "zen-cyclic-coo"])
def test_four_ranks_agree_to_the_bit(plan: str) -> None:
    torch.manual_seed(0)
    model = Net()
    shares = [[torch.randint(50, (3 + rank, 4)) for _ in range(4)] for rank in range(4)]

    def body(comm):
        run, mine = make_run(Metered(comm)), copy.deepcopy(model)
        _, optimizer, _ = run.prepare(mine, torch.optim.SGD(mine.parameters(), 0.1, momentum=0.9), plan=plan)
        for ids in shares[comm.rank]:
            optimizer.zero_grad()
            run.set_batch_weight(len(ids))
            mine(ids).backward()
            run.clip_grad_norm_(1.0)
            optimizer.step()
        run.close()
        return weights(mine)

    results = thread_gloo_ranks(4, body)
    for result in results:
        assert_equal(result, results[0])


def test_equals_one_process_without_batchnorm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 8), nn.Linear(8, 1)).double()
    shares = [[torch.randint(50, (2, 4)) for _ in range(4)] for _ in range(3)]

    def body(comm):
        run, mine = make_run(comm), copy.deepcopy(model)
        _, optimizer, _ = run.prepare(mine, sgd(mine), plan="zen-coo")
        for ids in shares[comm.rank]:
            optimizer.zero_grad()
            mine(ids).square().mean().backward()
            optimizer.step()
        run.close()
        return weights(mine)

    union = [torch.cat(step) for step in zip(*shares, strict=True)]
    expected = alone(model, union, lambda m, ids: m(ids).square().mean())
    for result in thread_gloo_ranks(3, body):
        assert_close(result, expected)


def test_a_rank_that_ends_is_named_with_the_step() -> None:
    def body(comm):
        run, model = make_run(comm), nn.Linear(2, 2)
        _, optimizer, _ = run.prepare(model, sgd(model), plan="dense")
        for step in range(3):
            if comm.rank == 1 and step == 2:
                run.control.close()
                return
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        return

    with pytest.raises(PeerLost) as found:
        thread_gloo_ranks(2, body, timeout_s=3.0)
    assert (found.value.rank, found.value.peer, found.value.step) == (0, 1, 2)


def test_models_of_other_sizes_raise_on_all_ranks_instead_of_ending_the_process() -> None:
    """Case 44: gloo itself ends the process when sizes differ."""

    def body(comm) -> str:
        model = nn.Linear(3, 2 + comm.rank)
        with pytest.raises(Disagreement) as found:
            make_run(comm).prepare(model, sgd(model), plan="dense")
        return str(found.value)

    for said in thread_gloo_ranks(2, body):
        assert "'weight [2, 3] float32' on rank 0" in said
