"""When lazily pulled rows must be there: before a batch is read, and all at evaluation, checkpoints and the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from omnizen.errors import UserError, nearest
from omnizen.plan.lazy import LAZY
from omnizen.train.lazy import LazyTable
from omnizen.train.sync import Engine

Reads = Callable[[Any], Mapping[str, Tensor]]
"""From a batch to the rows that forward will look up, by parameter name."""

ROW_WISE: dict[type[Optimizer], tuple[str, ...]] = {SGD: ("momentum", "weight_decay"), Adagrad: ("weight_decay",)}
"""Optimizers that change only rows with a gradient, and the settings that must be 0 for that."""


class Pulls:
    """Keeps the lazily pulled tables of a model in step with its training loop.

    Args:
        optimizers: of the model; they update a table's rows at their owners.
        reads: names the rows that a batch reads, so that they come while the step before is still under way; None
            pulls them when the embedding looks them up.

    Raises:
        UserError: an optimizer that changes rows without a gradient, or an embedding that writes to its rows.
    """

    def __init__(
        self, model: nn.Module, engine: Engine, optimizers: Sequence[Optimizer], reads: Reads | None
    ) -> None:
        self._engine, self._reads, self._optimizers = engine, reads, list(optimizers)
        self._tables: dict[str, LazyTable] = {}
        self._model = model
        self._hooks: list[Any] = []
        self._looked_at = False
        self.waited: Callable[[float, float], None] = lambda *_: None
        """Told when the user's thread waited for rows, from and until (``time.monotonic``)."""

    @property
    def ahead(self) -> bool:
        """Whether batches are looked at before their turn."""
        return self._reads is not None

    def follow(self) -> None:
        """Look after the tables among the engine's units, from now on; all rows are equal on all ranks now."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._tables = {unit.name: unit for unit in self._engine.units if isinstance(unit, LazyTable)}
        if not self._tables or self._engine.alone:
            self._tables = {}
            return
        by_param = {id(table.params[0]): table for table in self._tables.values()}
        for optimizer in self._optimizers:
            held = [
                by_param[id(p)] for group in optimizer.param_groups for p in group["params"] if id(p) in by_param
            ]
            if held:
                self._hooks.append(optimizer.register_step_pre_hook(partial(self._stepping, held)))
                self._hooks.append(optimizer.register_step_post_hook(partial(self._stepped, held)))
        self._hooks += [lazy.params[0].register_hook(lazy.adding) for lazy in self._tables.values()]
        for module in self._model.modules():
            table = by_param.get(id(getattr(module, "weight", None)))
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and table is not None:
                looked_up, saved = TableHook(table, self._looked_up), TableHook(table, self._saved)
                self._hooks.append(module.register_forward_pre_hook(looked_up, with_kwargs=True))
                self._hooks.append(module.register_state_dict_pre_hook(saved))

    def around(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield batches, each when its rows are there, and look one batch ahead."""
        nothing = object()
        rest = iter(batches)
        batch, foreseen = next(rest, nothing), False  # the pass before may have been left with a batch foreseen
        if batch is not nothing and not self._looked_at:
            self._look_at(self._named(batch))
        while batch is not nothing:
            now, batch = batch, next(rest, nothing)
            if self._tables:
                self._before(now, None if batch is nothing else batch, foreseen=foreseen)
                foreseen = True
            yield now

    def flush(self, *, state: bool = False) -> None:
        """Give every rank every row's last value; called by all ranks between steps.

        Args:
            state: also what the optimizer keeps for each row, for a checkpoint.
        """
        for table in self._tables.values():
            self._engine.call(table.flush)
            if state:
                kept = [optimizer.state.get(table.params[0], {}) for optimizer in self._optimizers]
                self._engine.call(partial(table.spread_state, kept))

    def restart(self) -> None:
        """Begin anew with all rows equal on all ranks: a checkpoint was read."""
        for table in self._tables.values():
            table.restart()

    def parts(self) -> set[int]:
        """Return ids of the parameters whose ``.grad`` holds this rank's part of the average only."""
        return {id(table.params[0]) for table in self._tables.values()}

    def _before(self, now: Any, coming: Any, *, foreseen: bool) -> None:
        rows, ahead = self._named(now), self._named(coming) if coming is not None else None
        begin_s = time.monotonic()
        for name, table in self._tables.items():
            self._engine.call_for_step(partial(table.ready, rows[name], foreseen=foreseen))
            table.look_ahead(None if ahead is None else ahead[name])
        self.waited(begin_s, time.monotonic())

    def _named(self, batch: Any) -> Mapping[str, Tensor]:
        assert self._reads is not None
        rows = self._reads(batch)
        if not isinstance(rows, Mapping):
            raise UserError(
                "reads(batch) must return rows by parameter name, such as {'table.weight': batch[0]}; it returned "
                f"a {type(rows).__name__}"
            )
        for name in self._tables:
            if name not in rows:
                raise UserError(
                    f"reads(batch) must name the rows of {name}; it names those of {', '.join(rows) or 'none'}"
                )
        return rows

    def _look_at(self, rows: Mapping[str, Tensor]) -> None:
        """Refuse, whatever the plan makes of it, what could not be used if it were lazy."""
        names = [name for name, _ in self._model.named_parameters(remove_duplicate=False)]
        for name, found in rows.items():
            if name not in names:
                raise UserError(f"reads(batch) names rows of no parameter of the model: {nearest(name, names)}")
            if not isinstance(found, Tensor):
                raise UserError(
                    f"reads(batch) must give the rows of {name} as a tensor; it gave a {type(found).__name__}"
                )
        self._looked_at = True

    def _stepping(self, tables: list[LazyTable], optimizer: Optimizer, *_: Any) -> None:
        for table in tables:  # schedules and checkpoints may change its settings
            check_row_wise(table.name, table.params[0], [optimizer])

    def _stepped(self, tables: list[LazyTable], *_: Any) -> None:
        for table in tables:
            self._engine.call(table.stepped)

    def _looked_up(
        self, table: LazyTable, module: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]
    ) -> None:
        rows = args[0] if args else named.get("input")
        if table.rows.all_current or rows is None:
            return
        training = module.training and torch.is_grad_enabled()
        if training and self._reads is None:
            begin_s = time.monotonic()
            self._engine.call_for_step(partial(table.pull, rows), spoken=True)
            self.waited(begin_s, time.monotonic())
            return
        if training:
            table.check_read(rows.detach().reshape(-1).long())
            return
        old = table.rows.maybe_old(rows.detach().reshape(-1).long())
        if len(old):
            raise UserError(
                f"row {int(old[0])} of {table.name} is read outside of training and its last value lies at its "
                "owner; call run.flush() on all ranks before you evaluate"
            )

    def _saved(self, table: LazyTable, *_: Any) -> None:
        check_all_here(table, "state_dict")


def _nothing(*_: Any) -> None:
    """What copies of a module have in place of a hook."""


def _no_hook() -> Callable[..., None]:
    return _nothing


class TableHook:
    """A hook of a module that looks a table up; copies of the module do without, and have every row's last value.

    Args:
        work: called with the table and what the hook is called with.
    """

    def __init__(self, table: LazyTable, work: Callable[..., None]) -> None:
        self._table, self._work = table, work

    def __call__(self, *given: Any) -> None:
        """Do the hook's work."""
        self._work(self._table, *given)

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        """Be left out of copies and pickles (``copy.deepcopy(model)``, ``torch.save(model)``)."""
        check_all_here(self._table, "a copy")
        return _no_hook, ()


def check_all_here(table: LazyTable, what: str) -> None:
    """Refuse to hand a table on whose rows lie at their owners."""
    if not table.rows.all_current:
        raise UserError(
            f"{what} of the model: rows of {table.name} lie at their owners; call run.flush() on all ranks before"
        )


def check_lazy(
    model: nn.Module, schemes: Mapping[str, str], optimizers: Sequence[Optimizer], scaler: object
) -> None:
    """Refuse lazily pulled tables that could not be trained as the eager form trains them.

    Args:
        schemes: by parameter name.
        scaler: of mixed precision, if any.

    Raises:
        UserError: says what is in the way.
    """
    lazy = [(name, p) for name, p in model.named_parameters() if schemes.get(name) == LAZY]
    if lazy and scaler is not None:
        raise UserError(
            f"plan={LAZY!r} does not go with a GradScaler: each rank would see infinities in its own rows only and "
            "skip other steps; use bfloat16, which needs no scaler, or another scheme"
        )
    for name, param in lazy:
        check_lookups(name, param, model)
        check_row_wise(name, param, optimizers)


def check_reads(reads: object, loader: object) -> None:
    """Refuse to name rows of batches that no loader hands out."""
    if reads is not None and loader is None:
        raise UserError("reads: names the rows of a loader's batches, and run.prepare() got no loader; give it one")
    if reads is not None and not callable(reads):
        raise UserError(f"reads: a function from a batch to the rows that forward will look up, got {reads!r}")


def may_be_lazy(model: nn.Module, optimizers: Sequence[Optimizer], scaler: object) -> frozenset[str]:
    """Return the names of the tables that ``check_lazy`` lets pass."""
    found = set()
    for name, param in model.named_parameters():
        if param.requires_grad and param.dim() == 2:
            with contextlib.suppress(UserError):
                check_lazy(model, {name: LAZY}, optimizers, scaler)
                found.add(name)
    return frozenset(found)


def check_row_wise(name: str, param: Parameter, optimizers: Sequence[Optimizer]) -> None:
    """Refuse to update a table at its owners with an optimizer that changes rows without a gradient.

    Raises:
        UserError: says which settings are allowed.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if all(p is not param for p in group["params"]) or type(optimizer) is SparseAdam:
                continue
            zero = ROW_WISE.get(type(optimizer))
            wrong = None if zero is None else next((key for key in zero if group[key]), None)
            if zero is None or wrong is not None:
                what = type(optimizer).__name__ + (f" with {wrong}={group[wrong]}" if wrong else "")
                raise UserError(
                    f"plan={LAZY!r}: {name} is updated by {what}, which changes rows without gradient; use SGD "
                    "without momentum and weight decay, Adagrad without weight decay, SparseAdam, or another scheme"
                )


def check_lookups(name: str, param: Parameter, model: nn.Module) -> None:
    """Refuse tables that are not only looked up by sparse embeddings.

    Raises:
        UserError: says what to change.
    """
    users = [m for m in model.modules() if any(p is param for p in m.parameters(recurse=False))]
    for module in users:
        embedding = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        if not embedding or not module.sparse:
            raise UserError(
                f"plan={LAZY!r}: {name} is used by {type(module).__name__}"
                f"{' with sparse=False' if embedding else ''}; only embeddings with sparse=True look up rows alone"
            )
