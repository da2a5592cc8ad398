"""How fast a device multiplies."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import torch

from omnizen.measure import flops


def test_operations_are_counted_over_the_time_that_they_took(monkeypatch):
    clock = itertools.count(100.0, 0.1)
    calls = []
    monkeypatch.setattr(flops, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(torch, "mm", lambda a, b, out: calls.append(a.shape))
    assert abs(flops.flops_per_s(seconds=0.25) / (2 * 256**3 * 12 / 0.3) - 1) < 1e-6
    assert calls == [(256, 256)] * 16
