"""The Triton twins, in Triton's interpreter, which needs no GPU."""

import importlib
import sys

import pytest
import torch

from omnizen.kernels.compaction import compact
from omnizen.kernels.owner import hash_owner
from omnizen.kernels.partition import hash_divide

MODULES = [f"omnizen.kernels.gpu.{name}" for name in ("owner", "compaction", "partition")]
NAN, INF = float("nan"), float("inf")


@pytest.fixture
def interpreted(monkeypatch):
    pytest.importorskip("triton", reason="the Triton twins need the triton package (requirements/gpu.txt)")
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # read when a kernel is defined
    for module in MODULES:
        sys.modules.pop(module, None)
    for module in MODULES:
        importlib.import_module(module)
    yield
    for module in MODULES:
        sys.modules.pop(module, None)


@pytest.mark.parametrize("count", [0, 1, 1023, 4097])
@pytest.mark.parametrize(("n", "seed"), [(1, 0), (7, 3), (1000, 2**31 + 5)])
def test_triton_hash_owner_equals_the_reference(interpreted, count, n, seed):
    rows = torch.randint(0, 2**40, (count,), generator=torch.Generator().manual_seed(count))
    rows[:2] = torch.tensor([0, 2**31])[: min(2, count)]
    assert torch.equal(hash_owner.run("gpu", rows, n, seed), hash_owner.run("reference", rows, n, seed))


@pytest.mark.parametrize(
    ("count", "dtype"), [(0, torch.int64), (1, torch.int32), (1023, torch.int64), (2049, torch.int32)]
)
def test_triton_hash_divide_equals_the_reference(interpreted, count, dtype):
    rows = torch.randperm(10 * count, generator=torch.Generator().manual_seed(count))[:count].sort().values
    got, expected = (hash_divide.run(impl, rows, 3, 77, dtype) for impl in ("gpu", "reference"))
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("count", "dtype", "threshold"),
    [
        (0, torch.float32, 1.0),
        (1, torch.float32, 0.0),
        (1023, torch.float64, 1.0),
        (1023, torch.float16, 1e-9),
        (1023, torch.bfloat16, 1.0),
        (1023, torch.float32, INF),
        (4097, torch.float32, 1.0),
    ],
)
def test_triton_compaction_equals_the_reference(interpreted, count, dtype, threshold):
    flat = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64).to(dtype)
    if count > 1:
        flat[[0, 2, 5, count - 1]] = torch.tensor([NAN, 0.0, INF, -INF], dtype=dtype)
    indices, values, total = compact.run("reference", flat, threshold, count)
    for room in {total, total // 2}:
        got = compact.run("gpu", flat, threshold, room)
        assert got[2] == total
        assert torch.equal(got[0], indices[:room])
        torch.testing.assert_close(got[1], values[:room], rtol=0, atol=0, equal_nan=True)
