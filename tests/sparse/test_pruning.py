"""Scores and masks against their definitions."""

import pytest
import torch
from torch import nn

from omnizen.errors import UserError
from omnizen.sparse.masks import Masks
from omnizen.sparse.pruning import best, grasp_scores, magnitude_scores, prunable


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def test_only_matrices_and_filters_are_pruned():
    assert set(prunable(net())) == {"1.weight", "3.weight"}


def test_grasp_equals_the_change_of_gradient_flow():
    """To first order, |g|^2 changes by -2 w (H g) when a weight is removed; here by a small step towards that."""
    model, ids = net(), torch.arange(9)
    labels = ids % 3

    def loss():
        return nn.functional.cross_entropy(model(ids), labels)

    def flow():
        grads = torch.autograd.grad(loss(), list(prunable(model).values()))
        return float(sum((g * g).sum() for g in grads))

    scores, before, step = grasp_scores(model, loss), flow(), 1e-6
    for name, place in (("1.weight", (2, 3)), ("3.weight", (1, 4)), ("3.weight", (0, 0))):
        weight = prunable(model)[name]
        kept = float(weight[place].detach())
        with torch.no_grad():
            weight[place] -= step * kept
        change = (flow() - before) / step
        with torch.no_grad():
            weight[place] = kept
        assert change == pytest.approx(-2 * float(scores[name][place]), rel=1e-3, abs=1e-9)


def test_a_linear_model_has_no_flow_to_keep():
    model = nn.Linear(3, 2, bias=False)
    with pytest.raises(UserError, match="does not depend on the weights"):
        grasp_scores(model, lambda: model(torch.ones(1, 3)).sum())


def test_the_best_of_all_or_of_each_layer():
    scores = {"a": torch.tensor([[9.0, 8.0], [1.0, 0.5]]), "b": torch.tensor([[7.0, 2.0], [3.0, 4.0]])}
    everywhere = best(scores, 0.5)
    assert everywhere.kept["a"].tolist() == [[True, True], [False, False]]
    assert everywhere.kept["b"].tolist() == [[True, False], [False, True]]
    each = best(scores, 0.25, "layer")
    assert [int(m.sum()) for m in each.kept.values()] == [1, 1]
    assert best({"a": torch.zeros(4)}, 0.5).kept["a"].tolist() == [True, True, False, False]
    assert best(scores, 1.0).density == 1.0


def test_masked_weights_and_gradients_are_zero():
    model = net()
    masks = best(magnitude_scores(model), 0.3)
    handles = masks.enforce(model)
    model(torch.arange(9)).square().sum().backward()
    for _, param, mask in masks.of(model):
        assert not param[~mask].any()
        assert not param.grad[~mask].any()
        assert param.grad[mask].any()
    for handle in handles:
        handle.remove()
    model.zero_grad()
    model(torch.arange(9)).square().sum().backward()
    assert any(param.grad[~mask].any() for _, param, mask in masks.of(model))


def test_digests_tell_masks_apart():
    a = Masks({"w": torch.tensor([[True, False]])}).digests()["w"]
    assert a.endswith("1 of 2 kept")
    assert a == Masks({"w": torch.tensor([[True, False]])}).digests()["w"]
    assert a != Masks({"w": torch.tensor([[False, True]])}).digests()["w"]
    assert a != Masks({"w": torch.tensor([[True], [False]])}).digests()["w"]


def test_refuses():
    for density in (0.0, 1.5, -1):
        with pytest.raises(UserError, match="density"):
            best({"w": torch.ones(2)}, density)
    with pytest.raises(UserError, match="did you mean 'layer'"):
        best({"w": torch.ones(2)}, 0.5, "layr")
    with pytest.raises(UserError, match="hold NaN"):
        best({"w": torch.tensor([float("nan")])}, 0.5)
    with pytest.raises(UserError, match=r"did you mean '3\.weight'"):
        Masks({"l.weight": torch.ones(1, dtype=torch.bool)}).zero(net())
    with pytest.raises(UserError, match=r"has shape \[1\]"):
        Masks({"1.weight": torch.ones(1, dtype=torch.bool)}).zero(net())
    with pytest.raises(UserError, match="must be a bool tensor"):
        Masks({"w": torch.ones(1)})


@pytest.mark.parametrize("density", ["x", None, True, float("nan"), 0, 1.5])
def test_what_is_no_density(density):
    with pytest.raises(UserError, match=r"density is the fraction of weights to keep, in \(0, 1\], got"):
        best({"w": torch.ones(2, 2)}, density)
