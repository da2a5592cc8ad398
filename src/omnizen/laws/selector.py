"""The laws of selectors: see the docstring of ``protocols.Selector``."""

from __future__ import annotations

import pickle

import torch
from torch import Tensor

from omnizen.laws.law import Law, LawBroken, Verdict, verdicts
from omnizen.laws.samples import DTYPES, same
from omnizen.protocols import Selector, SharedSelector
from omnizen.types import Sparse, Step

STEP = Step(3, shared_seed=11, name="law")
SEEDS = 400
NUMEL = 4000


def flats() -> dict[str, Tensor]:
    """Return flat tensors ``[numel]`` by name that have broken careless selectors."""
    rng = torch.Generator().manual_seed(7)
    plain = torch.randn(NUMEL, generator=rng)
    heavy = plain / torch.rand(NUMEL, generator=rng).clamp(min=1e-3) ** 2
    broken, odd = plain.clone(), plain.clone()
    broken[[0, 7, NUMEL - 1]] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    odd[::2] = float("nan")
    samples = {
        "plain": plain,
        "all positive": plain.abs() + 0.1,
        "heavy tail": heavy,
        "mostly zero": plain * (torch.rand(NUMEL, generator=rng) < 0.002),
        "all zero": torch.zeros(NUMEL),
        "all equal": torch.full((NUMEL,), -0.5),
        "one element": torch.tensor([-3.0]),
        "three elements": torch.tensor([1.0, -2.0, 0.5]),
        "empty": torch.zeros(0),
        "huge": plain * 1e37,
        "denormal": plain * 1e-41,
        "non-contiguous": torch.stack([plain, plain], 1)[:, 0],
        "not finite": broken,
        "half NaN": odd,
    }
    return samples | {str(dtype).removeprefix("torch."): plain.to(dtype) for dtype in DTYPES}


def keeps_kind_shape_and_type(selector: Selector) -> None:
    """What is selected is sparse, of width 1 and of the tensor's type and length, indices ascending int64."""
    for name, flat in flats().items():
        kept = selector.select(flat, STEP)
        if not isinstance(kept, Sparse):
            raise LawBroken(f"{name}: gives {type(kept).__name__}, not Sparse")
        rows, values = kept.indices, kept.values
        if kept.num_rows != flat.numel():
            raise LawBroken(f"{name}: num_rows is {kept.num_rows}, the tensor has {flat.numel()} elements")
        if rows.dtype != torch.int64 or rows.dim() != 1 or values.shape != (rows.numel(), 1):
            raise LawBroken(f"{name}: indices {list(rows.shape)} {rows.dtype}, values {list(values.shape)}")
        if values.dtype != flat.dtype:
            raise LawBroken(f"{name}: {flat.dtype} came back as {values.dtype}")
        if rows.numel() and (not bool((rows[1:] > rows[:-1]).all()) or rows[0] < 0 or rows[-1] >= flat.numel()):
            raise LawBroken(f"{name}: indices are not strictly ascending in 0..{flat.numel() - 1}")


def keeps_values(selector: Selector) -> None:
    """Unless it is unbiased, the values are the tensor's own."""
    for name, flat in flats().items():
        kept = selector.select(flat, STEP)
        if not selector.unbiased and not same(kept.values.view(-1), flat[kept.indices]):
            raise LawBroken(f"{name}: values are not those of the tensor")


def keeps_as_many_as_it_says(selector: Selector) -> None:
    """``keeps`` bounds how many come, beyond what is not finite; zeros need not come."""
    for name, flat in flats().items():
        count = selector.select(flat, STEP).indices.numel()
        odd = int((~torch.isfinite(flat)).sum())
        least, most = selector.keeps(flat.numel())
        if not min(least, int((flat != 0).sum())) <= count <= most + odd:
            raise LawBroken(f"{name}: {count} of {flat.numel()} elements, but keeps() says {least} to {most}")


def reports_what_is_not_finite(selector: Selector) -> None:
    """NaN and infinity are always selected, and stay what they are.

    A choice that all ranks share cannot depend on one rank's values, so it answers only for what it selects.
    """
    for name in ("not finite", "half NaN"):
        flat = flats()[name]
        whole = selector.select(flat, STEP).to_dense().view(-1)
        lost = ~torch.isfinite(flat) & torch.isfinite(whole)
        if isinstance(selector, SharedSelector):
            support = selector.support(flat.numel(), STEP)
            seen = torch.zeros_like(lost).index_fill_(0, support, True)
            lost, flat = lost & seen, torch.where(seen, flat, 0.0)
        if bool(lost.any()):
            raise LawBroken(f"{name}: {int(lost.sum())} elements that are not finite were left out or hidden")
        if not same(torch.isnan(whole), torch.isnan(flat)):
            raise LawBroken(f"{name}: NaN became infinity, or the other way round")


def chooses_alike_everywhere(selector: Selector) -> None:
    """The tensor and the step alone decide: a pickled copy chooses the same, whatever came in between."""
    for name, flat in flats().items():
        here = selector.select(flat, STEP)
        selector.select(flat, Step(4, shared_seed=11, name="law"))
        there = pickle.loads(pickle.dumps(selector)).select(flat, STEP)
        for other in (there, selector.select(flat, STEP)):
            if not same(here.indices, other.indices) or not same(here.values, other.values):
                raise LawBroken(f"{name}: the same tensor and step gave another choice")
        if isinstance(selector, SharedSelector) and not same(here.indices, selector.support(flat.numel(), STEP)):
            raise LawBroken(f"{name}: what is selected is not the support that all ranks share")


def leaves_input_alone(selector: Selector) -> None:
    """The tensor is not changed, and what is selected shares no memory with it."""
    for name, flat in flats().items():
        before = flat.clone()
        kept = selector.select(flat, STEP)
        if not same(flat, before):
            raise LawBroken(f"{name}: selecting changed the tensor")
        held = kept.values.clone()
        flat.fill_(9)
        if not same(kept.values, held):
            raise LawBroken(f"{name}: what was selected changed with the tensor")


def is_unbiased_as_declared(selector: Selector) -> None:
    """The mean over many steps of what is kept is the tensor, within 6 standard errors."""
    if not selector.unbiased:
        return
    flat = flats()["plain"][:500]
    kept = [selector.select(flat, Step(n, shared_seed=5, name="law")).to_dense().view(-1) for n in range(SEEDS)]
    mean = torch.stack(kept).double().mean(0)
    # Of a rare element the spread is unknown, so bound it by what its largest kept value allows.
    largest = torch.stack(kept).abs().amax(0).double().clamp(min=1e-12)
    standard_error = (flat.double().abs() * largest).sqrt() / SEEDS**0.5
    seen = largest > 1e-12
    off = (mean - flat.double()).abs()
    if bool((off > 6 * standard_error + 1e-6)[seen].any()):
        worst = float((off / standard_error)[seen].max())
        raise LawBroken(f"declared unbiased, but the mean of {SEEDS} steps is off by {worst:.1f} standard errors")
    total, expected = float(mean.abs().sum()), float(flat.double().abs().sum())
    if abs(total - expected) > 0.1 * expected:
        raise LawBroken(f"declared unbiased, but {total / expected:.2f} of the magnitude arrives in the mean")


SELECTOR_LAWS: tuple[Law[Selector], ...] = tuple(
    Law(check.__name__.replace("_", " "), (check.__doc__ or "").strip(), check)
    for check in (
        keeps_kind_shape_and_type,
        keeps_values,
        keeps_as_many_as_it_says,
        reports_what_is_not_finite,
        chooses_alike_everywhere,
        leaves_input_alone,
        is_unbiased_as_declared,
    )
)
"""All laws of selectors."""


def check_selector(selector: Selector) -> list[Verdict]:
    """Check all laws of selectors on one."""
    return verdicts(SELECTOR_LAWS, selector)
