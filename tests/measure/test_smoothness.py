"""How sharply losses bend, beside what algebra says."""

from __future__ import annotations

import pytest
import torch

from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.measure.smoothness import by_draws, by_power, of_all


def quadratic(scales: list[float], seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(len(scales), len(scales), generator=rng, dtype=torch.float64))
    matrix = turn @ torch.diag(torch.tensor(scales, dtype=torch.float64)) @ turn.T
    x = torch.randn(len(scales), generator=rng, dtype=torch.float64).requires_grad_()
    return x, lambda: 0.5 * x @ matrix @ x


@pytest.mark.parametrize("scales", [[4.0, 1.0, 0.2], [-5.0, 1.0, 2.0], [0.0, 0.0]])
def test_power_iteration_finds_the_largest_eigenvalue(scales) -> None:
    x, loss = quadratic(scales)
    before = x.detach().clone()
    found = by_power(loss, [x], iterations=60, generator=torch.Generator().manual_seed(1))
    assert found == pytest.approx(max(map(abs, scales)), rel=1e-6)
    assert torch.equal(x, before)


def test_power_iteration_over_several_parameters_of_logistic_regression() -> None:
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randn(50, 3, generator=rng, dtype=torch.float64)
    targets = (inputs[:, 0] > 0).double()
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    def loss():
        return torch.nn.functional.binary_cross_entropy_with_logits(inputs @ weight + bias, targets)

    with_one = torch.cat([inputs, torch.ones(50, 1, dtype=torch.float64)], 1)
    hessian = with_one.T @ with_one / (4 * 50)
    expected = float(torch.linalg.eigvalsh(hessian)[-1])
    assert by_power(loss, [weight, bias], iterations=50, generator=rng) == pytest.approx(expected, rel=1e-4)


def test_random_draws_stay_below_in_many_dimensions_and_leave_parameters() -> None:
    x, loss = quadratic([100.0] + [1.0] * 63)
    before = x.detach().clone()
    found = by_draws(loss, [x], draws=30, generator=torch.Generator().manual_seed(1))
    assert 1.0 < found < 60.0
    assert torch.equal(x, before)


def test_one_dimension_is_exact_by_draws() -> None:
    x = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    found = by_draws(lambda: (1.5 * x**2).sum(), [x], draws=3, generator=torch.Generator().manual_seed(0))
    assert found == pytest.approx(3.0, rel=1e-6)


def test_all_ranks_hear_of_all_shards() -> None:
    found = run_ranks(3, lambda comm: of_all(1.0 + comm.rank, comm), timeout_s=10.0)
    assert found == [[1.0, 2.0, 3.0]] * 3


@pytest.mark.parametrize("options", [{"draws": 0}, {"spread": 0.0}, {"step": -1.0}])
def test_bad_numbers_are_refused(options) -> None:
    x, loss = quadratic([1.0])
    with pytest.raises(UserError, match="must be"):
        by_draws(loss, [x], **options)
    with pytest.raises(UserError, match="iterations must be at least 1"):
        by_power(loss, [x], iterations=0)
