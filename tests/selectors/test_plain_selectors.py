"""The exact selector, the fixed threshold, and what all selectors refuse."""

import pytest
import torch

from omnizen import catalog
from omnizen.errors import UserError
from omnizen.selectors.given import num_kept
from omnizen.selectors.threshold import threshold
from omnizen.selectors.top_k import top_k
from omnizen.types import Step

STEP = Step(0)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("density", [0.001, 0.01, 0.25, 1.0])
@pytest.mark.parametrize("numel", [1, 2, 1000, 4097])
def test_top_k_equals_sorting(density, numel):
    flat = torch.randn(numel, generator=torch.Generator().manual_seed(numel), dtype=torch.float64)
    k = max(1, round(density * numel))
    expected = sorted(sorted(range(numel), key=lambda i: -abs(float(flat[i])))[:k])
    kept = top_k(density).select(flat, STEP)
    assert kept.indices.tolist() == expected
    assert torch.equal(kept.values.view(-1), flat[expected])


def test_of_equal_elements_the_first_are_kept():
    flat = torch.tensor([1.0, -2.0, 2.0, -2.0, 3.0, 2.0])
    assert top_k(0.5).select(flat, STEP).indices.tolist() == [1, 2, 4]
    assert top_k(0.5).select(torch.full((100,), -3.0), STEP).indices.tolist() == list(range(50))


def test_zeros_are_not_sent():
    flat = torch.tensor([0.0, -0.0, 3.0, 0.0, 1e-45, 0.0])
    assert top_k(0.5).select(flat, STEP).indices.tolist() == [2, 4]
    assert top_k(1.0).select(torch.zeros(8), STEP).indices.numel() == 0


def test_more_than_k_come_only_when_they_are_not_finite():
    flat = torch.tensor([5.0, NAN, 1.0, INF, -INF, NAN, 7.0, 0.0])
    assert top_k(0.25).select(flat, STEP).indices.tolist() == [1, 3, 4, 5]
    assert top_k(0.625).select(flat, STEP).indices.tolist() == [1, 3, 4, 5, 6]


def test_threshold_keeps_from_the_magnitude_on():
    flat = torch.tensor([0.5, -0.49, NAN, 0.0, -INF, -0.5])
    assert threshold(0.5).select(flat, STEP).indices.tolist() == [0, 2, 4, 5]


def test_gradients_with_a_graph_can_be_selected_from():
    flat = torch.ones(4, requires_grad=True) * 2
    assert not top_k(0.5).select(flat, STEP).values.requires_grad


def test_the_number_kept():
    assert [num_kept(0.01, numel) for numel in (0, 1, 49, 151, 10**10)] == [0, 1, 1, 2, 10**8]


@pytest.mark.parametrize("name", catalog.SELECTORS)
@pytest.mark.parametrize("density", [0.0, -0.1, 1.0001, NAN, "0.1", True])
def test_impossible_densities_are_refused(name, density):
    with pytest.raises(UserError, match=rf"{name}: density is the fraction that is kept, .* got {density!r}"):
        catalog.selector(name, density=density)


@pytest.mark.parametrize("name", catalog.SELECTORS)
@pytest.mark.parametrize(
    ("flat", "sentence"),
    [
        (torch.zeros(2, 2), r"flat tensor \[numel\], got \(2, 2\)"),
        (torch.tensor(1.0), r"flat tensor \[numel\], got \(\)"),
        (torch.zeros(3, dtype=torch.int64), "float32, float64, float16, bfloat16; got int64"),
        ([1.0], "got list"),
    ],
)
def test_what_is_no_flat_gradient_is_refused(name, flat, sentence):
    with pytest.raises(UserError, match=f"{name} selects from .*{sentence}"):
        catalog.selector(name).select(flat, STEP)


@pytest.mark.parametrize("least", [0.0, -1.0, NAN, INF, None])
def test_impossible_thresholds_are_refused(least):
    with pytest.raises(UserError, match="threshold: least must be above 0 and finite"):
        threshold(least)
