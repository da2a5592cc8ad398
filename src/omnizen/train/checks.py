"""What ``run.prepare`` and the functions of a run refuse, each with one sentence that says what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from omnizen.errors import Disagreement, UserError, nearest
from omnizen.train.loader import can_share

VALUES = ("float32", "float16", "bfloat16")
REDUCTIONS = ("mean", "sum")
OF_A_DEVICE = ("params", "param_names", "foreach", "fused", "capturable")
"""Of an optimizer's group, what is no number, or may fit one rank's device and not another's."""
MOST_SECONDS = 1e8
"""Three years; beyond some more, clocks of the libraries below overflow."""
TRAINED = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
)
"""Types of parameters whose gradients can be averaged."""


def check_choices(reduction: str, values: str) -> None:
    """Refuse unknown names."""
    if reduction not in REDUCTIONS:
        raise UserError(f"reduction: {nearest(reduction, REDUCTIONS)}")
    if values not in VALUES:
        raise UserError(f"values: {nearest(values, VALUES)}")


def check_model(model: nn.Module, size: int) -> None:
    """Refuse a model whose ranks could not be kept equal."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model: run.prepare() takes a torch.nn.Module, got {type(model).__name__}")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise UserError(f"{name} has no shape yet; run one forward pass before run.prepare()")
        if tensor.is_meta:
            raise UserError(
                f"{name} is on the meta device and has no values; materialise the model before run.prepare()"
            )
        if size > 1 and (refused := cannot_be_sent(tensor)):
            raise UserError(f"{name} {refused}")
        if tensor.requires_grad and tensor.dtype not in TRAINED:
            allowed = ", ".join(_short(dtype) for dtype in TRAINED)
            raise UserError(f"{name} is {_short(tensor.dtype)}; gradients of these types are averaged: {allowed}")
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            raise UserError(
                f"{name or 'the model'} is a DistributedDataParallel, which averages gradients itself; give "
                "run.prepare() its .module, or stay on DDP with oz.ddp_hook()"
            )
        rows = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None
        if size > 1 and rows and module.weight.requires_grad:
            raise UserError(
                f"{name or 'the model'} has max_norm, with which a forward pass rewrites the rows that its own "
                "rank reads, so that the ranks' weights drift apart; set max_norm=None and limit the rows' norms "
                "after optimizer.step()"
            )


def cannot_be_sent(tensor: Tensor) -> str:
    """Return why a tensor cannot be kept equal on all ranks, and what to do; empty where it can."""
    if any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__):
        return "is sharded (a DTensor, of FSDP or tensor parallel); give run.prepare() the model before it is"
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = str(tensor.layout).removeprefix("torch.") if tensor.layout != torch.strided else "quantized"
        return (
            f"is {kind}; parameters and buffers are compared and sent as dense tensors: make it dense, or keep a "
            "constant in a plain attribute of the module"
        )
    if any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True)):
        return "is expanded, so that its elements share memory and cannot be written to; register its .clone()"
    return ""


def check_optimizers(given: Optimizer | Sequence[Optimizer], model: nn.Module) -> list[Optimizer]:
    """Return the optimizers as a list; each parameter of theirs must be one of the model's."""
    several: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    if not several or not all(isinstance(each, Optimizer) for each in several):
        kinds = ", ".join(type(each).__name__ for each in several) or "an empty list"
        raise UserError(f"optimizer: run.prepare() takes a torch optimizer, or a list of them, got {kinds}")
    known = {id(p) for p in model.parameters()}
    for optimizer in several:
        for param in (p for group in optimizer.param_groups for p in group["params"]):
            if id(param) not in known:
                raise UserError(
                    f"{type(optimizer).__name__} holds a parameter of shape {list(param.shape)} that is not in the "
                    "model: it would differ from rank to rank; make the optimizer from the parameters of the model "
                    "that run.prepare() gets"
                )
    return list(several)


def describe_optimizers(optimizers: Sequence[Optimizer], model: nn.Module) -> str:
    """Return what ranks must agree on about their optimizers, a line for each group: gradients alone do not do."""
    names = {id(p): name for name, p in model.named_parameters()}
    lines = []
    for optimizer in optimizers:
        for place, group in enumerate(optimizer.param_groups):
            held = [names[id(p)] for p in group["params"]]
            settings = [f"{name}={_plain(value)}" for name, value in group.items() if name not in OF_A_DEVICE]
            of = f"{len(held)} parameters from {held[0]} to {held[-1]}" if held else "no parameters"
            lines.append(f"{type(optimizer).__name__}, group {place} with {of}: {', '.join(settings)}")
    return "\n".join([f"{len(lines)} groups", *lines])


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def describe_loader(loader: Any) -> str:
    """Return what ranks must agree on about their loaders."""
    if loader is None:
        return "none"
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise UserError(f"loader: run.prepare() takes an iterable of batches, got {type(loader).__name__}")
    if not can_share(loader):
        return "left as it is"
    if not hasattr(loader.dataset, "__len__"):
        raise UserError(
            f"loader: its data set, a {type(loader.dataset).__name__}, has no __len__, so its samples cannot be "
            "dealt out; give it one, or make it an IterableDataset of each rank's own samples"
        )
    kind = type(loader.sampler).__name__.removesuffix("Sampler").lower()
    return (
        f"{len(loader.dataset)} samples to deal out, {len(loader.sampler)} an epoch, {kind}, batch_size "
        f"{loader.batch_size}, drop_last {loader.drop_last}"
    )


def compare_settings(texts: Sequence[str]) -> None:
    """Check that all ranks said the same.

    Raises:
        Disagreement: naming the first line that differs and who said what.
    """
    for rank, text in enumerate(texts):
        lines = zip(texts[0].split("\n"), text.split("\n"), strict=False)
        first = next(((a, b) for a, b in lines if a != b), None)
        if first is not None:
            raise Disagreement(
                f"the ranks' settings differ: {first[0]!r} on rank 0, {first[1]!r} on rank {rank}; "
                "give every rank the same"
            )


def not_negative(value: Any, what: str, *, finite: bool = True) -> float:
    """Return a number of 0 or more; raises ``UserError`` for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not 0 <= number < math.inf and (finite or number != math.inf):
        raise UserError(f"{what} is a number of 0 or more, got {value!r}")
    return number


def whole_elements(dense_below: Any) -> int:
    """Return a number of elements; raises ``UserError`` for anything but a whole number of 0 or more."""
    if isinstance(dense_below, bool) or not isinstance(dense_below, int) or dense_below < 0:
        raise UserError(f"dense_below: a whole number of elements, 0 or more, got {dense_below!r}")
    return dense_below


def check_seconds(timeout_s: float) -> None:
    """Refuse what is no time limit."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= MOST_SECONDS:
        raise UserError(f"timeout_s: a number of seconds above 0 and up to {MOST_SECONDS:g}, got {timeout_s!r}")


def logged_number(name: str, value: float | Tensor) -> float:
    """Return what ``run.log`` was given as a number; raises ``UserError`` when it is not one."""
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise UserError(f"{name}: run.log() takes one number, got {shape}") from error


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
