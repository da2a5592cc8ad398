"""Inner loops beside what torch offers for the same, on one core, in turn: selection, and division by owner."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from omnizen.bench.rows import Row, measured
from omnizen.errors import UserError, nearest

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from omnizen.bench.tables import Kind

Methods = Mapping[str, Callable[[], Any]]

TOPK, PASS, TWO = "torch.topk", "pass: sum", "passes: abs, sum"
SORT, DIVIDE = "torch: hash, argsort", "hash_divide"
SELECTED = "select_s"
DIVIDED = "divide_s"
WARM_UP = 2
DATA = ("normal", "laplace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured.

    Args:
        numel: elements to select from.
        density: fraction to keep.
        data: distributions of the elements, of ``DATA``.
        rows: row numbers to divide.
        owners: numbers of owners to divide them among.
        repeats: timed calls of each method, in turn with the others.
        seed: of the data.
    """

    numel: int = 10_000_000
    density: float = 0.01
    data: tuple[str, ...] = DATA
    rows: int = 1_000_000
    owners: tuple[int, ...] = (4, 8)
    repeats: int = 9
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        for name in ("numel", "rows", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.density <= 1:
            raise UserError(f"density must be above 0 and at most 1, got {self.density}")
        for kind in self.data:
            if kind not in DATA:
                raise UserError(f"data: {nearest(kind, DATA)}")
        for n in self.owners:
            if n < 1:
                raise UserError(f"owners must be at least 1, got {n}")


def run_kernels(
    settings: Settings,
    on_case: Callable[[str], None] = lambda _: None,
    on_rows: Callable[[list[Row]], None] = lambda _: None,
) -> list[Row]:
    """Measure all cases on one core.

    Args:
        on_case: told what is begun.
        on_rows: given the rows of each case.
    """
    selecting = f"select {settings.density:.2%} of {settings.numel:,} float32"
    cases = [(f"{selecting}, {kind}", partial(selection, settings, kind)) for kind in settings.data]
    cases += [
        (f"divide {settings.rows:,} rows among {n} owners", partial(division, settings, n)) for n in settings.owners
    ]
    rows: list[Row] = []
    with one_thread():
        for words, measure in cases:
            on_case(words)
            made = measure()
            on_rows(made)
            rows += made
    return rows


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, as a worker of several on a machine does."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_turn(methods: Methods, repeats: int) -> dict[str, list[float]]:
    """Return seconds of each call: one of each method, and again, after warming up."""
    for call in methods.values():
        for _ in range(WARM_UP):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, call in methods.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def elements(kind: str, numel: int, seed: int) -> Tensor:
    """Return ``[numel]`` float32 that are distributed as a gradient may be."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    if kind == "normal":
        return torch.randn(numel, generator=rng)
    sign = torch.randint(0, 2, (numel,), generator=rng).float().mul_(2).sub_(1)
    return torch.empty(numel).exponential_(generator=rng).mul_(sign)


def selection(settings: Settings, kind: str) -> list[Row]:
    """Measure all selectors that search by magnitude, torch's and numpy's own ways, and one pass."""
    import numpy as np
    import torch

    from omnizen import catalog
    from omnizen.selectors.given import num_kept
    from omnizen.types import Step

    flat = elements(kind, settings.numel, settings.seed)
    k = num_kept(settings.density, settings.numel)
    exact = flat.abs().topk(k)
    names = ("top-k", "sampled-threshold", "mstopk", "sidco-exponential", "sidco-gamma", "sidco-pareto")
    selectors = {name: catalog.selector(name, density=settings.density) for name in names}
    selectors["threshold"] = catalog.selector(
        "threshold", least=float(exact.values.min()), density=settings.density
    )
    buffer = torch.empty_like(flat)
    methods: dict[str, Callable[[], Any]] = {
        PASS: flat.sum,
        TWO: lambda: torch.abs(flat, out=buffer).sum(),
        TOPK: lambda: flat.abs().topk(k),
        "numpy.argpartition": lambda: np.argpartition(np.abs(flat.numpy()), settings.numel - k)[-k:],
    }
    for name, selector in selectors.items():
        methods[name] = partial(selector.select, flat, Step(0))
    seconds = in_turn(methods, settings.repeats)
    passed, searched = median(seconds[PASS]), median(seconds[TOPK])
    rows = []
    for name, samples in seconds.items():
        params: dict[str, Any] = {
            "numel": settings.numel, "density": settings.density, "dtype": "float32", "threads": 1,
            "topk_over_this": searched / median(samples), "this_over_pass": median(samples) / passed,
        }  # fmt: skip
        if name in selectors:
            kept = torch.zeros(settings.numel, dtype=torch.bool)
            kept[selectors[name].select(flat, Step(0)).indices] = True
            params |= {"recall": float(kept[exact.indices].float().mean()), "kept_over_k": int(kept.sum()) / k}
        case = f"select {settings.density:.2%} of {settings.numel:,} float32, {kind}"
        rows.append(
            measured(
                samples, bench="kernels", case=case, method=name, hosts=1, rate_mbit=None,
                metric=SELECTED, unit="s", params=params,
            )
        )  # fmt: skip
    return rows


def division(settings: Settings, n: int) -> list[Row]:
    """Measure how rows are divided among owners by hash, beside hash and stable sort in torch."""
    import torch

    from omnizen.kernels.owner import hash_owner
    from omnizen.kernels.partition import hash_divide

    rng = torch.Generator().manual_seed(settings.seed)
    rows = torch.randint(0, 10, (settings.rows,), generator=rng) + 10 * torch.arange(settings.rows)
    calls: Methods = {
        SORT: lambda: torch.argsort(hash_owner.run("reference", rows, n, settings.seed), stable=True),
        DIVIDE: lambda: hash_divide(rows, n, settings.seed, torch.int32),
    }
    seconds = in_turn(calls, settings.repeats)
    return [
        measured(
            samples, bench="kernels", case=f"divide {settings.rows:,} rows among {n} owners", method=name,
            hosts=1, rate_mbit=None, metric=DIVIDED, unit="s",
            params={
                "rows": settings.rows, "owners": n, "threads": 1,
                "ns_a_row": 1e9 * median(samples) / settings.rows,
                "sort_over_this": median(seconds[SORT]) / median(samples),
            },
        )
        for name, samples in seconds.items()
    ]  # fmt: skip


def tables(rows: Sequence[Row]) -> list[Table]:
    """Lay the methods of each case side by side."""
    from omnizen.bench.tables import table

    columns: dict[str, Kind] = {"method": "name"}
    columns |= dict.fromkeys(("ms", "20 %", "80 %", "times\ntorch", "passes", "kept / k", "recall"), "number")
    cases = dict.fromkeys(row.case for row in rows)
    return [
        table(f"{case}, one core: median over repeats, methods in turn", columns,
              [_line(row) for row in rows if row.case == case])
        for case in cases
    ]  # fmt: skip


def _line(row: Row) -> tuple[str, ...]:
    assert row.value is not None
    assert row.p20 is not None
    assert row.p80 is not None
    times = row.params.get("topk_over_this", row.params.get("sort_over_this"))
    return (
        row.method,
        *(f"{1e3 * value:.2f}" for value in (row.value, row.p20, row.p80)),
        f"{times:.1f}" if row.method != PASS else "",
        f"{row.params['this_over_pass']:.2f}" if "this_over_pass" in row.params else "",
        f"{row.params['kept_over_k']:.3f}" if "recall" in row.params else "",
        f"{row.params['recall']:.4f}" if "recall" in row.params else "",
    )


def verdict(rows: Sequence[Row], recall: float = 0.98) -> list[str]:
    """Return a sentence for each case: the fastest selector of enough recall, and how the division compares.

    ``threshold`` is left out, as it is given the right threshold.
    """
    found = []
    for case in dict.fromkeys(row.case for row in rows):
        of = {row.method: row for row in rows if row.case == case}
        if DIVIDE in of:
            params = of[DIVIDE].params
            found.append(
                f"{case}: {params['ns_a_row']:.1f} ns a row, {params['sort_over_this']:.1f} times as fast as "
                "hash and stable argsort in torch"
            )
            continue
        good = [r for r in of.values() if r.params.get("recall", 0.0) >= recall and r.method != "threshold"]
        if good:
            best = min(good, key=lambda row: row.value or 0.0)
            found.append(
                f"{case}: {best.method} is {best.params['topk_over_this']:.0f} times as fast as torch.topk "
                f"(recall {best.params['recall']:.4f}), {best.params['this_over_pass']:.2f} times one pass"
            )
    return found
