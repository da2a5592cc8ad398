"""Training a pruned model over ranks: equal to one process under the same masks, at a fraction of the bytes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.errors import Disagreement, UserError
from omnizen.sparse.pruning import best, grasp_scores, magnitude_scores
from omnizen.train.units import DenseBucket, RowTable
from tests.train.helpers import assert_close, assert_equal, make_run, on_ranks, weights

DENSITY = 0.2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16, sparse=True)
        self.layers = nn.Sequential(nn.Linear(16, 80), nn.ReLU(), nn.Linear(80, 20))
        self.double()

    def forward(self, ids):
        return self.layers(self.table(ids)).square().mean()


def shares(size, steps):
    rng = torch.Generator().manual_seed(3)
    return [[torch.randint(20, (6,), generator=rng) for _ in range(steps)] for _ in range(size)]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("plan", ["compact", "dense"])
def test_equals_one_process_under_the_same_masks(plan: str) -> None:
    torch.manual_seed(0)
    model, batches = Net(), shares(3, 6)

    def body(run):
        mine = copy.deepcopy(model)
        _, optimizer, _ = run.prepare(mine, sgd(mine), plan=plan)
        masks = run.prune(DENSITY)
        assert masks.density == pytest.approx(DENSITY, abs=0.01)
        for ids in batches[run.rank]:
            optimizer.zero_grad()
            mine(ids).backward()
            optimizer.step()
        return weights(mine)

    results = on_ranks(3, body)
    alone = copy.deepcopy(model)
    masks = best(magnitude_scores(alone), DENSITY)
    masks.enforce(alone)
    optimizer = sgd(alone)
    for step in zip(*batches, strict=True):
        optimizer.zero_grad()
        alone(torch.cat(step)).backward()
        optimizer.step()
    for result in results:
        assert_equal(result, results[0])
        assert_close(result, weights(alone))
        assert not result["layers.0.weight"][~masks.kept["layers.0.weight"]].any()


def test_only_kept_weights_travel() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 100))

    def body(comm):
        metered = Metered(comm)
        run, mine = make_run(metered), copy.deepcopy(model)
        _, optimizer, _ = run.prepare(mine, sgd(mine), plan="compact")
        run.prune(0.1)
        before = metered.reading()
        mine(torch.randn(4, 100)).square().mean().backward()
        spent = (metered.reading() - before).traffic.rx_bytes
        optimizer.step()
        run.close()
        return spent

    kept = 0.1 * 2 * 100 * 200 + 300 + 4 + 1  # weights, biases, flags of parameters, the one that asks for more
    assert run_ranks(4, body)[0] == pytest.approx(1.5 * 4 * kept, rel=0.01)  # the rest is the control word


def test_grasp_scores_are_averaged_over_ranks() -> None:
    torch.manual_seed(0)
    model, batches = Net(), shares(2, 1)

    def body(run):
        mine = copy.deepcopy(model)
        run.prepare(mine, sgd(mine), plan="compact")
        scores = grasp_scores(mine, lambda: mine(batches[run.rank][0]))
        return run.prune(0.3, scores, scope="layer"), scores

    (first, mine), (second, theirs) = on_ranks(2, body)
    for name in first.kept:
        assert torch.equal(first.kept[name], second.kept[name])
        assert not torch.equal(mine[name], theirs[name])
    mean = {name: (mine[name] + theirs[name]).float() for name in mine}
    assert torch.equal(best(mean, 0.3, "layer").kept["layers.0.weight"], first.kept["layers.0.weight"])


def test_masks_that_differ_are_named_on_all_ranks() -> None:
    torch.manual_seed(0)
    model = Net()

    def body(run):
        mine = copy.deepcopy(model)
        run.prepare(mine, sgd(mine), plan="compact")
        masks = best(magnitude_scores(mine), 0.5 if run.rank != 1 else 0.4)
        with pytest.raises(
            Disagreement, match=r"'layers\.0\.weight: .*on rank 0 and 'layers\.0\.weight: .* rank 1"
        ):
            run.use_masks(masks)
        with pytest.raises(UserError, match="density" if run.rank == 1 else "rank 1 cannot go on"):
            run.prune(2.0 if run.rank == 1 else 0.5)

    on_ranks(3, body)


def test_tables_with_sparse_gradients_keep_an_exact_scheme() -> None:
    def body(run):
        mine = Net()
        run.prepare(mine, sgd(mine), plan="compact")
        return [(type(u), u.reducer.name) for u in run.engine.units]

    torch.manual_seed(0)
    (units,) = on_ranks(1, body)
    assert units == [(DenseBucket, "dense"), (DenseBucket, "compact"), (RowTable, "agsparse")]  # biases are dense
