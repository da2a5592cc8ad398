"""The Triton twin, in Triton's interpreter, which needs no GPU."""

import importlib
import sys

import pytest
import torch

from omnizen.kernels.owner import hash_owner


@pytest.fixture
def interpreted(monkeypatch):
    pytest.importorskip("triton", reason="the Triton twins need the triton package (requirements/gpu.txt)")
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # read when a kernel is defined
    sys.modules.pop("omnizen.kernels.gpu.owner", None)
    importlib.import_module("omnizen.kernels.gpu.owner")
    yield
    sys.modules.pop("omnizen.kernels.gpu.owner", None)


@pytest.mark.parametrize("count", [0, 1, 1023, 4097])
@pytest.mark.parametrize(("n", "seed"), [(1, 0), (7, 3), (1000, 2**31 + 5)])
def test_triton_hash_owner_equals_the_reference(interpreted, count, n, seed):
    rows = torch.randint(0, 2**40, (count,), generator=torch.Generator().manual_seed(count))
    rows[:2] = torch.tensor([0, 2**31])[: min(2, count)]
    assert torch.equal(hash_owner.run("gpu", rows, n, seed), hash_owner.run("reference", rows, n, seed))
