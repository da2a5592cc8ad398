"""The user's model: what it is made of, and how fast its own step runs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

import torch
from torch import nn

from omnizen.errors import UserError

B = TypeVar("B")
SPAN_S = 0.5
"""Timed calls last at least so long together: a processor under a quota runs at full speed for some hundredths of a
second, then rests, so that no single short call shows how fast it is."""
MOST_CALLS = 100
"""Of one size, however short they are."""


def model_digest(model: nn.Module) -> str:
    """Return 16 hexadecimal digits of the parameters' names, shapes, dtypes and of which are trained.

    Values do not count: a plan fits every state of the same model.

    Example:
        >>> model_digest(nn.Linear(2, 3)) == model_digest(nn.Linear(2, 3))
        True
    """
    digest = hashlib.blake2b(digest_size=8)
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype} {parameter.requires_grad}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a step runs at one batch size.

    Args:
        samples_per_s: over all timed steps.
        spread: (80th - 20th percentile) / median of single steps.
        step_s: mean seconds of a step.
    """

    samples_per_s: float
    spread: float
    step_s: float


def measure_rate(
    step_fn: Callable[[B], object],
    batches: Mapping[int, B],
    *,
    warmup: int = 2,
    repeats: int = 5,
    budget_s: float = 10.0,
    device: torch.device | str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, Rate]:
    """Time the user's own step at several batch sizes.

    Args:
        step_fn: one forward and backward (and update, if it is to count).
        batches: a batch for each batch size.
        warmup: first calls at each size, which do not count.
        repeats: calls that do, more where they take less than ``SPAN_S`` together.
        budget_s: seconds after which no further size is begun; the smallest is always measured.
        device: where the step runs, so that its queue is waited for.
        clock: seconds now.

    Raises:
        UserError: when there is no batch, or a size below 1.
    """
    if not batches or min(batches) < 1 or repeats < 1:
        raise UserError(f"need a batch for at least one size from 1 up, got {sorted(batches)}, {repeats} repeats")
    started = clock()
    rates: dict[int, Rate] = {}
    for size in sorted(batches):
        if rates and clock() - started > budget_s:
            break
        for _ in range(warmup):
            step_fn(batches[size])
        seconds: list[float] = []
        while not enough(seconds, repeats):
            seconds.append(_one(step_fn, batches[size], device, clock))
        seconds.sort()
        spread = (_percentile(seconds, 0.8) - _percentile(seconds, 0.2)) / _percentile(seconds, 0.5)
        step_s = fmean(seconds)
        rates[size] = Rate(size / step_s, spread, step_s)
    return rates


def enough(seconds: Sequence[float], repeats: int) -> bool:
    """Return whether timed calls are enough to tell how fast a device is."""
    return len(seconds) >= repeats and (sum(seconds) >= SPAN_S or len(seconds) >= MOST_CALLS)


def _one(step_fn: Callable[[B], object], batch: B, device: torch.device | str, clock: Callable[[], float]) -> float:
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
    began = clock()
    step_fn(batch)
    if cuda:
        torch.cuda.synchronize(device)
    return max(clock() - began, 1e-9)


def _percentile(ascending: list[float], fraction: float) -> float:
    position = fraction * (len(ascending) - 1)
    low = int(position)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (position - low) * (ascending[high] - ascending[low])
