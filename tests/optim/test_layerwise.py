"""LARS and LAMB against their formulas in numpy; norms by parts against norms on every rank."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.optim.lamb import Lamb
from omnizen.optim.lars import Lars
from omnizen.optim.norms import norms, share_out

STEPS = 5


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4), nn.Linear(4, 1)).double()


def batch(n):
    return torch.randn(10, 6, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def trained(make, steps=STEPS, model=None, optimizer=None, first=0):
    model = model or net()
    optimizer = optimizer or make(model.parameters())
    for n in range(first, first + steps):
        optimizer.zero_grad()
        model(batch(n)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def by_hand(rule):
    """Train with a rule in numpy: ``rule(w, g, memory, step) -> w``."""
    model, memory = net(), {}
    for n in range(STEPS):
        model.zero_grad()
        model(batch(n)).square().mean().backward()
        for name, p in model.named_parameters():
            found = rule(p.detach().numpy().copy(), p.grad.numpy(), memory.setdefault(name, {}), n + 1)
            with torch.no_grad():
                p.copy_(torch.from_numpy(found))
    return model


def lars_rule(w, g, memory, step):
    lr, m, wd, trust = 2.0, 0.9, 0.01, 0.02
    ratio = trust * np.linalg.norm(w) / (np.linalg.norm(g) + wd * np.linalg.norm(w)) if w.ndim > 1 else 1.0
    memory["v"] = m * memory.get("v", 0.0) + lr * ratio * (g + wd * w)
    return w - memory["v"]


def lamb_rule(w, g, memory, step):
    lr, b1, b2, eps, wd = 0.05, 0.9, 0.99, 1e-6, 0.1
    memory["m"] = b1 * memory.get("m", 0.0) + (1 - b1) * g
    memory["v"] = b2 * memory.get("v", 0.0) + (1 - b2) * g * g
    u = memory["m"] / (1 - b1**step) / (np.sqrt(memory["v"] / (1 - b2**step)) + eps) + wd * w
    return w - lr * (np.linalg.norm(w) / np.linalg.norm(u) if w.ndim > 1 else 1.0) * u


MAKERS = {
    "lars": lambda p, comm=None: Lars(p, 2.0, 0.9, 0.01, 0.02, comm),
    "lamb": lambda p, comm=None: Lamb(p, 0.05, (0.9, 0.99), 1e-6, 0.1, comm),
}
RULES = {"lars": lars_rule, "lamb": lamb_rule}


@pytest.mark.parametrize("name", MAKERS)
def test_equals_the_formula(name):
    ours, _ = trained(MAKERS[name])
    for a, b in zip(ours.parameters(), by_hand(RULES[name]).parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6)  # ratios of norms are kept in float32


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("name", MAKERS)
def test_norms_by_parts_change_no_bit(name, size):
    serial, _ = trained(MAKERS[name])
    models = [net() for _ in range(size)]  # seeds are global: made before the threads

    def body(comm):
        model = models[comm.rank]
        return trained(None, model=model, optimizer=MAKERS[name](model.parameters(), comm))[0]

    for model in run_ranks(size, body):
        for a, b in zip(model.parameters(), serial.parameters(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("name", MAKERS)
def test_resumes(name):
    straight, _ = trained(MAKERS[name], 6)
    model, optimizer = trained(MAKERS[name], 3)
    fresh = copy.deepcopy(model)
    again = MAKERS[name](fresh.parameters())
    again.load_state_dict(optimizer.state_dict())
    trained(None, 3, fresh, again, first=3)
    for a, b in zip(fresh.parameters(), straight.parameters(), strict=True):
        assert torch.equal(a, b)


def test_each_norm_is_computed_once_over_all_ranks():
    tensors = [torch.full((k,), 2.0) for k in (100, 1, 50, 50, 7)]

    def body(comm):
        return norms(tensors, comm), comm.reading().traffic.rx_bytes

    for found, spent in run_ranks(3, body, wrap=Metered):
        assert torch.equal(found, norms(tensors))
        assert spent <= 5 * 4 + 2 * 8
    torch.testing.assert_close(norms(tensors), 2.0 * torch.tensor([100.0, 1, 50, 50, 7]).sqrt())


def test_shares_are_even():
    owners = share_out([100, 1, 50, 50, 7], 2)
    loads = [sum(s for s, o in zip([100, 1, 50, 50, 7], owners, strict=True) if o == r) for r in range(2)]
    assert sorted(loads) == [101, 107]
    assert share_out([], 3) == []


def test_zero_weights_and_zero_gradients_take_the_plain_step():
    w = nn.Parameter(torch.zeros(2, 2))
    w.grad = torch.ones(2, 2)
    Lars([w], lr=0.5, momentum=0.0).step()
    assert w.tolist() == [[-0.5, -0.5], [-0.5, -0.5]]
    w.grad = torch.zeros(2, 2)
    Lamb([w], lr=0.5).step()
    assert w.tolist() == [[-0.5, -0.5], [-0.5, -0.5]]


def test_refuses():
    w = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(UserError, match="lr must be 0 or more, got -1"):
        Lars([w], lr=-1)
    with pytest.raises(UserError, match="betas must be 0 or more"):
        Lamb([w], betas=(-0.1, 0.9))
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(UserError, match="takes dense real gradients"):
        Lamb(table.parameters()).step()
