"""How fast a rank multiplies: the one number that a device is, before the user's model has run on it."""

from __future__ import annotations

import time

import torch

SIDES = {"cpu": 256, "cuda": 2048}
"""Sides of the matrices: long enough to be near the device's speed, short enough for many in the time."""
CALLS_BETWEEN_LOOKS = 4


def flops_per_s(device: torch.device | str = "cpu", *, seconds: float = 0.2) -> float:
    """Return the floating-point operations a second of a float32 matrix product, with the threads that torch has.

    Processor quotas and other work on the machine count, as they will in training.

    Args:
        device: where the rank's model lies.
        seconds: for which it is measured, beside one call to warm up.
    """
    device = torch.device(device)
    side = SIDES.get(device.type, SIDES["cpu"])
    a, b = (torch.ones(side, side, device=device) for _ in range(2))
    out = torch.empty_like(a)

    def multiply() -> None:
        for _ in range(CALLS_BETWEEN_LOOKS):
            torch.mm(a, b, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    multiply()
    began_s, calls = time.monotonic(), 0
    while True:
        multiply()
        calls += CALLS_BETWEEN_LOOKS
        taken_s = time.monotonic() - began_s
        if taken_s >= seconds:
            return 2.0 * side**3 * calls / taken_s
