"""Save and resume, bit for bit: the model and optimizer once, and what each rank has of its own.

A checkpoint is a folder on storage that all ranks see: ``shared/`` is a torch.distributed.checkpoint of the
weights and the optimizer's tensors (equal on all ranks, so rank 0 writes them); ``shared.pt`` holds the
optimizer's numbers, the step and the plan; ``rank{r}.pt`` a rank's reducer states, random generators and place in
the data (of loaders that have a ``state_dict``). The ``.pt`` files load with ``weights_only=True``.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import re
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.optim import Optimizer

from omnizen.errors import Disagreement, UserError
from omnizen.measure.model import model_digest
from omnizen.measure.texts import gather_texts
from omnizen.reducers.state import from_state_dict, state_dict
from omnizen.train.control import Turn
from omnizen.train.everyone import on_everyone
from omnizen.train.extra import Extra, check_names, restore, schedule_left_out, states
from omnizen.train.odd import check_finite
from omnizen.train.start import as_bytes

if TYPE_CHECKING:
    from omnizen.train.run import Run

T = TypeVar("T")
VERSION = 4
_TURNS = threading.Lock()
_OURS = re.compile(r"shared|shared\.pt|rank\d+\.pt")
"""Names of all that is in a checkpoint."""


def save(run: Run, folder: str | Path, extra: Extra | None = None) -> None:
    """Write a checkpoint (collective); an earlier one of that name is replaced when the new one is complete.

    Args:
        extra: objects of the user's whose states are kept too, each rank's own, by a name.

    Raises:
        NotFinite: weights hold NaN or infinity; the earlier checkpoint stays.
        UserError: on all ranks, when a rank cannot write there, when the folder holds anything but a checkpoint, or
            in the middle of gradient accumulation.
        UnevenInputs: another rank does something else.
    """
    target = Path(folder).resolve()
    if not target.name:
        raise UserError(f"{target} cannot be a checkpoint: give a folder of its own")
    run.engine.announce(Turn.SAVE)
    kept = _on_everyone(run, lambda: states(extra))
    if run.rank == 0:
        schedule_left_out(run.optimizers, kept)
    _on_everyone(run, run.engine.check_between_steps)
    run.pulls.flush(state=True)
    run.driver.flush()
    run.driver.check_save()
    _on_everyone(run, lambda: check_finite(run.model))
    partial, old = (target.with_name(f"{target.name}.{kind}") for kind in ("partial", "old"))

    def begin() -> None:
        if run.rank == 0:
            for path in (target, partial, old):
                _check_own(path)
            with _writing(target), run.detached.attached(), run.driver.attached():
                if partial.exists():
                    shutil.rmtree(partial)
                partial.mkdir(parents=True)
                _save_shared(run, partial)

    def own() -> None:
        with _writing(target):
            torch.save(own_state(run) | {"extra": kept}, partial / f"rank{run.rank}.pt")

    def replace() -> None:
        if run.rank == 0:
            with _writing(target):
                if target.exists():
                    shutil.rmtree(old, ignore_errors=True)
                    target.rename(old)
                partial.rename(target)
                shutil.rmtree(old, ignore_errors=True)

    for work in (begin, own, replace):
        _on_everyone(run, work)


def _check_own(path: Path) -> None:
    """Refuse to replace what is no checkpoint."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; a checkpoint is a folder")
    foreign = [p.name for p in path.iterdir() if not _OURS.fullmatch(p.name)] if path.exists() else []
    if foreign:
        raise UserError(
            f"{path} holds {min(foreign)!r}, which is no part of a checkpoint and would be lost; save into a "
            "folder of its own"
        )


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, CheckpointException) as error:
        raise UserError(
            f"the checkpoint cannot be written to {target} ({type(error).__name__}: {error}); all ranks need a "
            "folder that they share and may write to"
        ) from error


def _save_shared(run: Run, folder: Path) -> None:
    tensors, numbers = split_optimizers(run.model, run.optimizers)
    whole = run.model.state_dict()
    tensors |= {f"model/{name}": t.detach() for name, t in whole.items() if isinstance(t, Tensor)}
    with _by_one_process():
        dcp.save(tensors, checkpoint_id=folder / "shared", no_dist=True)
    shared = {
        "version": VERSION,
        "size": run.size,
        "model_digest": model_digest(run.model),
        "step": run.engine.place(),
        "optimizers": numbers,
        "extra": {name: value for name, value in whole.items() if not isinstance(value, Tensor)},
        "plan": run.plan.to_toml() if run.plan is not None else "",
    }
    torch.save(shared, folder / "shared.pt")
    try:
        torch.load(folder / "shared.pt", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            "the optimizers' settings or the model's extra state hold objects that cannot be read back safely: "
            f"{str(error).splitlines()[0]}"
        ) from error


def load(run: Run, folder: str | Path, extra: Extra | None = None) -> None:
    """Go on from a checkpoint (collective), bit-identical to a run that never stopped.

    Nothing is changed unless all ranks could read the same checkpoint.

    Args:
        extra: objects that get the states back which were saved under these names.

    Raises:
        UserError: on all ranks: made by another number of ranks, for another model or optimizer, damaged, or not
            there; says what differs.
    """
    path = Path(folder)
    run.engine.announce(Turn.LOAD)
    shared, own, found = _on_everyone(run, lambda: _read(run, path, extra))
    digests = run.engine.call(lambda: gather_texts(run.control, _digest(shared, found)))
    for rank, digest in enumerate(digests):
        if digest != digests[0]:
            raise Disagreement(f"{path} holds one checkpoint on rank 0 and another one on rank {rank}")
    _on_everyone(run, lambda: _go_on(run, path, shared, own, found))
    _on_everyone(run, lambda: restore(own.get("extra", {}), extra))


def _read(run: Run, path: Path, extra: Extra | None) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    if not (path / "shared.pt").exists() or not (path / f"rank{run.rank}.pt").exists():
        raise UserError(
            f"{path} holds no complete checkpoint for rank {run.rank}; all ranks must see the same folder (a "
            "shared file system, or a copy on each machine)"
        )
    with _reading(path):
        shared = torch.load(path / "shared.pt", weights_only=True)
        _check(shared, run)
        own = torch.load(path / f"rank{run.rank}.pt", weights_only=True)
        if own["step"] != shared["step"]:
            raise UserError(
                f"{path} mixes two checkpoints: shared.pt is of step {shared['step']}, rank{run.rank}.pt of step "
                f"{own['step']}"
            )
        if own["loader"] is not None and not hasattr(run.loader, "load_state_dict"):
            raise UserError(
                f"{path} knows a place in the data, but this run has no loader that can go there; give "
                "run.prepare() the loader that the saved run had"
            )
        check_names(own.get("extra", {}), extra)
        if not shared["plan"]:
            _check_memory(own["reducers"], run)
        return shared, own, read_tensors(path / "shared")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except (Exception, CheckpointException) as error:  # a damaged file can fail anywhere in torch
        reason = next(iter(str(error).splitlines()), "")
        raise UserError(
            f"{path} is damaged, or no checkpoint of this job ({type(error).__name__}: {reason}); take another one"
        ) from error


def _digest(shared: dict[str, Any], found: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(f"{shared['step']} {shared['plan']}".encode(), digest_size=16)
    for name, tensor in sorted(found.items()):
        digest.update(name.encode())
        digest.update(as_bytes(tensor).numpy().data)
    return digest.hexdigest()


def _go_on(run: Run, path: Path, shared: dict[str, Any], own: dict[str, Any], found: dict[str, Tensor]) -> None:
    from omnizen.plan.plan import Plan

    with _reading(path):
        if own["loader"] is not None:  # what it refuses it refuses before weights change
            run.loader.load_state_dict(own["loader"])
        run.pulls.restart()  # nothing of before is sent any more
        load_shared(run.model, run.optimizers, found, shared)
        kept = Plan.from_toml(shared["plan"], source=f"the plan in {path}") if shared["plan"] else None
        if kept is not None and kept.strategy == "sync":  # other strategies are those of run.prepare()
            run.follow(kept)
        run.engine.step = shared["step"]
        run.engine.buffers.finish()
        restore_own(run, own)
        run.detached.load_state_dict(own["detached"])
        run.driver.load_state_dict(own["driver"])


def _check_memory(saved: Mapping[str, Mapping[str, Any]], run: Run) -> None:
    """Refuse a checkpoint whose reducers keep between steps what this run's would misread or forget."""
    now = {unit.name: unit for unit in run.engine.units}
    for name, kept in saved.items():
        shapes = {key: list(tensor.shape) for key, tensor in kept["slots"].items()}
        unit = now.get(name)
        if not shapes or (unit is not None and shapes == {k: list(t.shape) for k, t in unit.state.slots.items()}):
            continue
        reducer = getattr(unit, "reducer", None)
        held = "nothing of it" if unit is None else f"it by {getattr(reducer, 'name', 'lazy')}"
        raise UserError(
            f"the checkpoint holds what its scheme kept of {name} between steps ({', '.join(shapes)}); this run "
            f"sends {held}, which would lose that: resume with the plan that the saved run had"
        )


def _check(shared: dict[str, Any], run: Run) -> None:
    if shared["version"] != VERSION:
        raise UserError(f"the checkpoint's version is {shared['version']}, this release reads {VERSION}")
    if shared["size"] != run.size:
        raise UserError(
            f"the checkpoint was made by {shared['size']} ranks, this run has {run.size}: each rank's reducer "
            "state, random generators and place in the data belong to that number; resume with as many ranks"
        )
    if shared["model_digest"] != model_digest(run.model):
        raise UserError("the checkpoint is of another model (names, shapes, dtypes or frozen parameters differ)")
    kept, now = [each["kind"] for each in shared["optimizers"]], [type(o).__name__ for o in run.optimizers]
    if kept != now:
        raise UserError(f"the checkpoint is of the optimizers {', '.join(kept)}; this run has {', '.join(now)}")


def _on_everyone(run: Run, work: Callable[[], T]) -> T:
    return on_everyone(lambda said: run.engine.call(lambda: gather_texts(run.control, said)), work)


@contextmanager
def _by_one_process() -> Iterator[None]:
    """Leave out torch's warning that no_dist means one process; that is what we mean.

    Filters of warnings are the process's, so ranks that are threads of one take turns.
    """
    with _TURNS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        yield


def split_optimizers(model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[dict[str, Tensor], list[Any]]:
    """Part the optimizers' state into tensors, by parameter name, and all the rest."""
    names = {id(p): name for name, p in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    rest: list[Any] = []
    for i, optimizer in enumerate(optimizers):
        state = optimizer.state_dict()
        order = [names.get(id(p), f"#{k}") for k, p in enumerate(_params(optimizer))]
        numbers: dict[str, dict[str, Any]] = {}
        for index, slots in state["state"].items():
            for slot, value in slots.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer{i}/{order[index]}/{slot}"] = value
                else:
                    numbers.setdefault(order[index], {})[slot] = value
        rest.append({"kind": type(optimizer).__name__, "groups": state["param_groups"], "numbers": numbers})
    return tensors, rest


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a ``torch.distributed.checkpoint`` by their keys."""
    stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    found: dict[str, Any] = {
        key: torch.empty(meta.size, dtype=meta.properties.dtype)
        for key, meta in stored.items()
        if isinstance(meta, TensorStorageMetadata)
    }
    with _by_one_process():
        dcp.load(found, checkpoint_id=path, no_dist=True)
    return found


def load_shared(
    model: nn.Module, optimizers: Sequence[Optimizer], found: dict[str, Tensor], shared: dict[str, Any]
) -> None:
    """Put optimizers and weights back."""
    names = {id(p): name for name, p in model.named_parameters()}
    for i, (optimizer, kept) in enumerate(zip(optimizers, shared["optimizers"], strict=True)):
        state: dict[int, dict[str, Any]] = {}
        order = {names.get(id(p), f"#{k}"): k for k, p in enumerate(_params(optimizer))}
        for key, value in found.items():
            owner, _, path_in = key.partition("/")
            if owner == f"optimizer{i}":
                name, _, slot = path_in.rpartition("/")
                state.setdefault(order[name], {})[slot] = value
        for name, slots in kept["numbers"].items():
            state.setdefault(order[name], {}).update(slots)
        optimizer.load_state_dict({"state": state, "param_groups": kept["groups"]})
    weights = {key.removeprefix("model/"): value for key, value in found.items() if key.startswith("model/")}
    model.load_state_dict(weights | shared["extra"])


def _params(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def own_state(run: Run) -> dict[str, Any]:
    """Return what this rank has of its own, in types that ``weights_only`` admits."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "step": run.engine.place(),
        "usual_weight": run.engine.usual_weight,
        "reducers": {unit.name: state_dict(unit.state) for unit in run.engine.units},
        "detached": run.detached.state_dict(),
        "driver": run.driver.state_dict(),
        "python": list(random.getstate()[1]),
        "python_gauss": random.getstate()[2],
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if run.device.type == "cuda" else None,
        "loader": run.loader.state_dict() if hasattr(run.loader, "state_dict") else None,
        "balance": run.balance.state_dict() if run.balance is not None else None,
    }


def restore_own(run: Run, own: dict[str, Any]) -> None:
    """Put a rank's own state back."""
    run.engine.usual_weight = own["usual_weight"]
    for unit in run.engine.units:
        if unit.name in own["reducers"]:
            unit.state = from_state_dict(own["reducers"][unit.name])
    random.setstate((3, tuple(own["python"]), own["python_gauss"]))
    kind, keys, position, has_gauss, gauss = own["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(own["torch"])
    if own["cuda"] is not None:
        torch.cuda.set_rng_state(own["cuda"])
    if own["balance"] is not None and run.balance is not None:
        run.balance.load_state_dict(own["balance"])
