"""Which parameter is synchronised how (the split is Parallax's: dense by all-reduce, sparse by its own scheme).

Reference: Kim et al., "Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks", EuroSys 2019.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import Parameter

from omnizen.errors import UserError, nearest
from omnizen.plan.lazy import LAZY
from omnizen.protocols import Comm, Reducer
from omnizen.train.lazy import LazyTable
from omnizen.train.units import DenseBucket, RowTable, Unit
from omnizen.types import Dense, Sparse

if TYPE_CHECKING:
    from omnizen.plan.plan import Plan

BUCKET_BYTES = 4 * 2**20
"""Size from which a dense bucket is closed where no plan says otherwise; small, to start before backward ends."""
DENSE_BELOW = 1000
"""Elements below which a lossy scheme leaves a parameter whole: one message carries many such."""


@dataclass(frozen=True, slots=True)
class Table:
    """A parameter that an embedding reads rows of.

    Args:
        sparse: whether its gradients are sparse tensors.
    """

    name: str
    sparse: bool


@dataclass(frozen=True, slots=True)
class Routing:
    """Scheme by parameter name.

    Args:
        schemes: catalogue names; parameters that are not named go into dense buckets.
        bucket_bytes: size from which a dense bucket is closed.
        values: dtype of values on the wire for row schemes.
    """

    schemes: Mapping[str, str]
    bucket_bytes: int = BUCKET_BYTES
    values: str = "float32"


def trainable(model: nn.Module) -> list[tuple[str, Parameter]]:
    """Return the distinct parameters that are trained, shared ones once, in the model's order."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def tables(model: nn.Module) -> list[Table]:
    """Return the trained weights of the model's embeddings."""
    sparse: dict[int, bool] = {}
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            sparse[id(module.weight)] = sparse.get(id(module.weight), False) or bool(module.sparse)
    return [Table(name, sparse[id(p)]) for name, p in trainable(model) if id(p) in sparse]


def by_scheme(model: nn.Module, scheme: str, values: str = "float32", dense_below: int = DENSE_BELOW) -> Routing:
    """Use one scheme for every embedding and dense all-reduce for the rest.

    A scheme that makes dense gradients smaller is meant for all parameters but small ones.
    """
    if scheme == LAZY:
        return Routing({table.name: LAZY for table in tables(model)}, values=values)
    if shortens(make_reducer(scheme, values)):
        return by_patterns(model, {"*": scheme}, values, dense_below)
    return Routing({table.name: scheme for table in tables(model)}, values=values)


def by_patterns(
    model: nn.Module, patterns: Mapping[str, str], values: str = "float32", dense_below: int = DENSE_BELOW
) -> Routing:
    """Use for each parameter the scheme of the first pattern that its name matches, as file names match ``*``.

    What no pattern matches is reduced as it would be without a plan: sparse gradients by agsparse, others dense.
    So are gradients that a lossy scheme cannot take or that it would not pay for: sparse tensors, complex numbers,
    and parameters of fewer than ``dense_below`` elements.

    Raises:
        UserError: for a pattern that matches no parameter (names the nearest one), and for an unknown scheme.
    """
    names = [name for name, _ in trainable(model)]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            found = nearest(pattern, names, listed_by="model.named_parameters()")
            raise UserError(f"plan: no parameter is called {pattern!r}: {found}")
    reducers = {scheme: make_reducer(scheme, values) for scheme in patterns.values() if scheme != LAZY}
    sparse = {table.name: table.sparse for table in tables(model)}
    chosen = {}
    for name, param in trainable(model):
        plain = "agsparse" if sparse.get(name, False) else "dense"
        scheme = next((s for pattern, s in patterns.items() if fnmatch.fnmatchcase(name, pattern)), plain)
        reducer = reducers.get(scheme)
        if reducer is not None and shortens(reducer) and Sparse not in reducer.takes:
            scheme = plain if sparse.get(name, False) or param.numel() < dense_below else scheme
        chosen[name] = "dense" if param.is_complex() else scheme
    return Routing(chosen, values=values)


def shortens(reducer: Reducer) -> bool:
    """Whether a reducer makes dense gradients smaller, by losing something or by leaving out zeros."""
    return reducer.name != "dense" and Dense in reducer.takes and (not reducer.exact or Sparse not in reducer.takes)


def make_reducer(scheme: str, values: str) -> Reducer:
    """Return the reducer of a name, or of a text with settings; exact row schemes get the wanted dtype."""
    from omnizen import catalog

    made = catalog.reducer(scheme)  # refuses an unknown name
    scheme = catalog.full_name(scheme)
    row = catalog.REDUCERS.get(scheme)
    as_they_are = scheme == "dense" or row is None or row.lossy or Sparse not in made.takes
    return made if as_they_are else catalog.reducer(scheme, values=values)


def build(
    model: nn.Module,
    routing: Routing,
    make: Callable[[str, str], Reducer] = make_reducer,
    *,
    comm: Comm | None = None,
) -> list[Unit]:
    """Lay the trained parameters out in units, last parameter first (the order in which backward reaches them).

    Parameters of one scheme, dtype and device share flat buckets, closed when they hold ``bucket_bytes`` or more:
    small tensors travel with the large one that follows instead of delaying it by a message of their own. Each
    parameter with a row scheme is a unit of its own (complex ones have none). Embeddings come last: they sit at the
    input, so backward reaches them last, and a tied one is complete only then; nothing ready waits for them.
    """
    known = {table.name: table.sparse for table in tables(model)}
    units: list[Unit] = []
    late: list[Unit] = []
    filling: dict[Any, list[tuple[str, Parameter]]] = {}

    def flush(key: Any) -> None:
        if named := filling.pop(key, []):
            scheme, *_, is_table = key
            (late if is_table else units).append(DenseBucket(named, make(scheme, routing.values)))

    for name, param in reversed(trainable(model)):
        scheme = "dense" if param.is_complex() else routing.schemes.get(name, "dense")
        if scheme == LAZY:
            assert comm is not None, "owners talk to readers"
            late.append(LazyTable(name, param, comm))
            continue
        reducer = None if scheme == "dense" else make(scheme, routing.values)
        if reducer is not None and Sparse in reducer.takes and (name in known or _rows_only(reducer)):
            table = RowTable(name, param, reducer, sparse=known.get(name, False), patient=name in known)
            (late if name in known else units).append(table)
        else:
            key = (scheme, param.dtype, param.device, name in known)
            bucket = filling.setdefault(key, [])
            bucket.append((name, param))
            if sum(p.numel() * p.element_size() for _, p in bucket) >= routing.bucket_bytes:
                flush(key)
    for key in list(filling):
        flush(key)
    return units + late


def _rows_only(reducer: Reducer) -> bool:
    """Whether a dense parameter was given this reducer for its zero rows."""
    return reducer.exact or Dense not in reducer.takes


def by_plan(
    model: nn.Module, plan: str | Path | Plan, size: int, values: str, dense_below: int = DENSE_BELOW
) -> tuple[Plan, Routing]:
    """Follow a plan, or the file of one.

    Local steps exchange no gradients: their averages are dense, or go through the plan's compression.

    Raises:
        UserError: the plan was made for another job; says what differs.
    """
    from omnizen.measure.model import model_digest
    from omnizen.plan.plan import Plan

    found = plan if isinstance(plan, Plan) else Plan.load(plan)
    found.check(size, model_digest(model), torch.__version__)
    if found.strategy == "local":
        compression = found.execution.compression if found.execution else ""
        return found, by_scheme(model, compression or "dense", values, dense_below)
    return found, _schemes(found, values)


def from_plan(plan: Plan, values: str) -> Routing:
    """Return the choices of a plan that a synchronous run changes to.

    Raises:
        UserError: the plan asks for another strategy.
    """
    if plan.strategy != "sync":
        raise UserError(
            f"a run goes on with the strategy that it began with, and the plan's is {plan.strategy!r}; give the "
            "plan to run.prepare(plan=...)"
        )
    return _schemes(plan, values)


def _schemes(plan: Plan, values: str) -> Routing:
    return Routing({t.name: t.scheme for t in plan.tensors}, plan.bucket_bytes, values)
