"""Every codec of the catalogue by itself: bits, time and error on one core."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from omnizen import catalog
from omnizen.bench.rows import Row, failed, measured
from omnizen.errors import LISTS_METHODS, UserError, nearest
from omnizen.protocols import Codec
from omnizen.types import Dense, Packed, Payload, Sparse, Step, hash_text

if TYPE_CHECKING:
    from rich.table import Table

    from omnizen.bench.tables import Kind

WARM_STEPS, SEQUENCES = 10, 16
ITEM_METRICS = {Sparse: "bits_per_index", Dense: "bits_per_value"}


@dataclass(frozen=True, slots=True)
class Sample:
    """Something to pack.

    Args:
        case: its name in the rows.
        payload: rows at random places, or values of a gradient.
        density: fraction of elements that are there; of a gradient's values, the largest.
    """

    case: str
    payload: Dense | Sparse
    density: float

    @property
    def items(self) -> int:
        """Indices or values."""
        return self.payload.values.shape[0]


def real_gradient(seed: int) -> Tensor:
    """Return the gradient of a language model after some steps on Python's own sources, flat float32.

    Its word table gives the rows that were touched, its LSTM everything: about half a million values.
    """
    from omnizen.bench.cases import make_case

    case = make_case("lm", corpus="stdlib")
    model = case.make_model(sparse=True, seed=seed)
    optimizer = case.make_optimizer(model)
    for batch in islice(case.batches(rank=0, size=1, batch=SEQUENCES, seed=seed), WARM_STEPS):
        optimizer.zero_grad()
        case.loss(model, batch).backward()
        optimizer.step()
    grads = [param.grad for param in model.parameters() if param.grad is not None]
    return torch.cat([(g.coalesce().values() if g.is_sparse else g).reshape(-1) for g in grads])


def samples(elements: int, densities: Sequence[float], gradient: Tensor, seed: int) -> Iterator[Sample]:
    """Yield rows at random places for codecs of places, then a gradient's largest values for those of values."""
    by_size = gradient.abs().argsort(descending=True)
    for density in densities:
        rng = torch.Generator().manual_seed(hash_text(f"codecs/{seed}/{density}"))
        places = (torch.rand(elements, generator=rng) < density).nonzero().view(-1)
        values = gradient[torch.arange(places.numel()) % gradient.numel()]
        yield Sample(
            f"{elements} elements d={density:g} uniform", Sparse(places, values[:, None], elements), density
        )
    for density in (*densities, 1.0):
        kept = by_size[: max(1, round(density * gradient.numel()))].sort().values
        yield Sample(f"gradient of lm, largest {density:g}", Dense(gradient[kept]), density)
    yield Sample("gradient of lm, bfloat16", Dense(gradient.bfloat16()), 1.0)


def chosen(names: Sequence[str]) -> dict[str, Codec]:
    """Return the codecs that pack something, by name; all of them when none is named.

    Raises:
        UserError: a name that is no codec of places or values.
    """
    made = {name: catalog.codec(name) for name in catalog.CODECS}
    fit = {n: codec for n, codec in made.items() if codec.takes in (Dense, Sparse) and codec.gives is Packed}
    for name in names:
        if name not in fit:
            raise UserError(f"--codecs: {nearest(name, fit, listed_by=LISTS_METHODS)}")
    return {name: fit[name] for name in names or fit}


def run_codecs(
    *, elements: int, densities: Sequence[float], names: Sequence[str], repeats: int, seed: int,
    on_case: Callable[[str], None] = lambda _: None, on_rows: Callable[[list[Row]], None] = lambda _: None,
) -> list[Row]:  # fmt: skip
    """Time every codec on every sample of its kind on one core and return the rows; ``on_rows`` gets each codec's.

    Raises:
        UserError: settings that cannot be.
    """
    if elements < 1 or repeats < 1 or not all(0 < density <= 1 for density in densities):
        raise UserError("--elements and --repeats must be 1 or more, and each density above 0 and at most 1")
    codecs = chosen(names)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = []
        for sample in samples(elements, densities, real_gradient(seed), seed):
            on_case(sample.case)
            for name, codec in codecs.items():
                if isinstance(sample.payload, codec.takes):
                    made = _rows(name, codec, sample, repeats)
                    on_rows(made)
                    rows += made
        return rows
    finally:
        torch.set_num_threads(threads)


def _rows(name: str, codec: Codec, sample: Sample, repeats: int) -> list[Row]:
    common: dict[str, Any] = {"bench": "codecs", "case": sample.case, "method": name, "hosts": 1, "rate_mbit": None}
    params = {"items": sample.items, "density": sample.density, "threads": 1, "exact": codec.exact}
    try:
        packed, encode_s = _timed(lambda n: codec.encode(sample.payload, Step(n)), repeats)
        back, decode_s = _timed(lambda _: codec.decode(packed), repeats)
    except UserError as error:  # a library that is not installed
        return [failed(str(error), params=params, **common)]
    assert isinstance(packed, Packed)
    taken = packed.nbytes
    if isinstance(sample.payload, Sparse):  # what is beyond the values themselves
        taken -= sample.payload.values.numel() * sample.payload.values.element_size()
    sent, arrived = _whole(sample.payload), _whole(back)
    off = float((arrived - sent).norm() / sent.norm())

    def row(metric: str, unit: str, found: list[float]) -> Row:
        return measured(found, metric=metric, unit=unit, params=params, **common)

    return [
        row(ITEM_METRICS[type(sample.payload)], "bit", [8 * taken / sample.items]),
        row("encode_items_per_s", "1/s", [sample.items / s for s in encode_s]),
        row("decode_items_per_s", "1/s", [sample.items / s for s in decode_s]),
        row("relative_error", "", [off]),
    ]


def _timed(work: Callable[[int], Payload], repeats: int) -> tuple[Payload, list[float]]:
    """Return what the work gives, and its seconds; one round before compiles and fills caches."""
    made, seconds = work(0), []
    for n in range(repeats):
        start = time.perf_counter()
        made = work(n)
        seconds.append(time.perf_counter() - start)
    return made, seconds


def _whole(x: Payload) -> Tensor:
    assert isinstance(x, Dense | Sparse)
    return (x.to_dense() if isinstance(x, Sparse) else x.values).double()


def tables(rows: Sequence[Row]) -> list[Table]:
    """Lay the codecs of each sample side by side."""
    from omnizen.bench.tables import table

    cases: dict[str, dict[str, dict[str, Row]]] = {}
    for row in rows:
        cases.setdefault(row.case, {}).setdefault(row.method, {})[row.metric] = row
    columns: dict[str, Kind] = {"codec": "name"}
    columns |= dict.fromkeys(("bits\nan item", "encode\nM/s", "decode\nM/s", "relative\nerror"), "number")
    shown = []
    for case, by_codec in cases.items():
        reasons = [f"{n}: {f['failed'].params['reason']}" for n, f in by_codec.items() if "failed" in f]
        items = next(iter(next(iter(by_codec.values())).values())).params["items"]
        lines = [_line(name, found) for name, found in by_codec.items()]
        shown.append(table(f"{case}, {items} items, one core: medians", columns, lines, "\n".join(reasons)))
    return shown


def _line(name: str, found: dict[str, Row]) -> tuple[str, ...]:
    if "failed" in found:
        return (name, "failed", "", "", "")
    value = {metric: row.value or 0.0 for metric, row in found.items()}
    bits = value.get("bits_per_index", value.get("bits_per_value", 0.0))
    speeds = (f"{value[m] / 1e6:.1f}" for m in ("encode_items_per_s", "decode_items_per_s"))
    return (name, f"{bits:.2f}", *speeds, f"{value['relative_error']:.2g}")
