"""Save and resume, bit for bit: the model and optimizer once, and what each rank has of its own.

A checkpoint is a folder on storage that all ranks see: ``shared/`` is a torch.distributed.checkpoint of the
weights and the optimizer's tensors (equal on all ranks, so rank 0 writes them); ``shared.pt`` holds the
optimizer's numbers, the step and the plan; ``rank{r}.pt`` a rank's reducer states, random generators and place in
the data (of loaders that have a ``state_dict``). The ``.pt`` files load with ``weights_only=True``.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.optim import Optimizer

from omnizen.errors import UserError
from omnizen.measure.model import model_digest
from omnizen.reducers.state import from_state_dict, state_dict

if TYPE_CHECKING:
    from omnizen.train.run import Run

VERSION = 1


def save(run: Run, folder: str | Path) -> None:
    """Write a checkpoint (collective); an earlier one of that name is replaced when the new one is complete."""
    target, partial = Path(folder), Path(f"{folder}.partial")
    if run.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        tensors, numbers = split_optimizers(run.model, run.optimizers)
        tensors |= {f"model/{name}": value for name, value in tensors_of(run.model).items()}
        with _by_one_process():
            dcp.save(tensors, checkpoint_id=partial / "shared", no_dist=True)
        shared = {
            "version": VERSION,
            "size": run.size,
            "model_digest": model_digest(run.model),
            "step": run.step,
            "optimizers": numbers,
            "plan": run.plan.to_toml() if run.plan is not None else "",
        }
        torch.save(shared, partial / "shared.pt")
    _meet(run)
    torch.save(own_state(run), partial / f"rank{run.rank}.pt")
    _meet(run)
    if run.rank == 0:
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    _meet(run)


def load(run: Run, folder: str | Path) -> None:
    """Go on from a checkpoint (collective), bit-identical to a run that never stopped.

    Raises:
        UserError: made by another number of ranks, for another model, or not there; says what differs.
    """
    from omnizen.plan.plan import Plan

    path = Path(folder)
    if not (path / "shared.pt").exists() or not (path / f"rank{run.rank}.pt").exists():
        raise UserError(
            f"{path} holds no complete checkpoint for rank {run.rank}; all ranks must see the same folder (a "
            "shared file system, or a copy on each machine)"
        )
    shared = torch.load(path / "shared.pt", weights_only=True)
    _check(shared, run)
    own = torch.load(path / f"rank{run.rank}.pt", weights_only=True)
    load_shared(run.model, run.optimizers, path / "shared", shared["optimizers"])
    if shared["plan"]:
        run.follow(Plan.from_toml(shared["plan"], source=f"the plan in {path}"))
    run.engine.step = shared["step"]
    run.engine.buffers.finish()
    restore_own(run, own)
    _meet(run)


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


@contextmanager
def _by_one_process() -> Iterator[None]:
    """Leave out torch's warning that no_dist means one process; that is what we mean."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        yield


def _meet(run: Run) -> None:
    run.engine.call(run.control.barrier)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's state by name."""
    return {name: value.detach() for name, value in model.state_dict().items() if isinstance(value, Tensor)}


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
        rest.append({"groups": state["param_groups"], "numbers": numbers})
    return tensors, rest


def load_shared(model: nn.Module, optimizers: Sequence[Optimizer], path: Path, rest: Sequence[Any]) -> None:
    """Read weights and optimizers back."""
    stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    tensors = tensors_of(model)
    found: dict[str, Any] = {
        key: torch.empty(meta.size, dtype=meta.properties.dtype)
        for key, meta in stored.items()
        if isinstance(meta, TensorStorageMetadata)
    }
    with _by_one_process():
        dcp.load(found, checkpoint_id=path, no_dist=True)
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(found[f"model/{name}"])
    names = {id(p): name for name, p in model.named_parameters()}
    for i, (optimizer, kept) in enumerate(zip(optimizers, rest, strict=True)):
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


def _params(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def own_state(run: Run) -> dict[str, Any]:
    """Return what this rank has of its own, in types that ``weights_only`` admits."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "reducers": {unit.name: state_dict(unit.state) for unit in run.engine.units},
        "python": list(random.getstate()[1]),
        "python_gauss": random.getstate()[2],
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if run.device.type == "cuda" else None,
        "loader": run.loader.state_dict() if hasattr(run.loader, "state_dict") else None,
    }


def restore_own(run: Run, own: dict[str, Any]) -> None:
    """Put a rank's own state back."""
    for unit in run.engine.units:
        if unit.name in own["reducers"]:
            unit.state = from_state_dict(own["reducers"][unit.name])
    random.setstate((3, tuple(own["python"]), own["python_gauss"]))
    kind, keys, position, has_gauss, gauss = own["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(own["torch"])
    if own["cuda"] is not None:
        torch.cuda.set_rng_state(own["cuda"])
    if own["loader"] is not None:
        run.loader.load_state_dict(own["loader"])
