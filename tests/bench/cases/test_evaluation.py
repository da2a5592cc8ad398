"""The held-out measures, and what order of samples the cases read."""

import numpy as np
import pytest
import torch

from omnizen.bench.cases.case import shuffled
from omnizen.bench.cases.cnn import SmallCnn
from omnizen.bench.cases.flights import auc


def test_auc_of_perfect_reversed_and_useless_scores():
    positive = np.array([0, 1, 0, 1, 1])
    assert auc(np.array([0.1, 0.8, 0.2, 0.7, 0.9]), positive) == 1
    assert auc(-np.array([0.1, 0.8, 0.2, 0.7, 0.9]), positive) == 0
    assert auc(np.zeros(5), positive) == 0.5


def test_auc_agrees_with_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 30, 500) / 30, rng.integers(0, 2, 500)
    assert auc(scores, positive) == pytest.approx(metrics.roc_auc_score(positive, scores), abs=1e-12)


@pytest.mark.parametrize("case", ["flights", "cnn"], indirect=True)
def test_training_raises_the_held_out_measure(case):
    model = case.make_model(sparse=True, seed=0)
    optimizer = case.make_optimizer(model)
    before = case.evaluate(model)
    for step in range(80):
        optimizer.zero_grad()
        case.loss(model, case.batch_at(step, rank=0, size=1, batch=16, seed=0)).backward()
        optimizer.step()
    assert case.evaluate(model) > max(0.85, before)


def test_the_network_has_421_thousand_weights():
    assert sum(p.numel() for p in SmallCnn().parameters()) == 421_576


def test_an_epoch_reads_each_sample_once_over_all_ranks():
    read = [shuffled(s, rank=r, size=3, batch=4, seed=1, total=36) for s in range(3) for r in range(3)]
    assert sorted(torch.cat(read).tolist()) == list(range(36))
    next_epoch = [shuffled(s, rank=r, size=3, batch=4, seed=1, total=36) for s in range(3, 6) for r in range(3)]
    assert sorted(torch.cat(next_epoch).tolist()) == list(range(36))
    assert not torch.equal(torch.cat(read), torch.cat(next_epoch))
