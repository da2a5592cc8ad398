"""Masks say which weights exist; the others are zero, stay zero, and have no gradient."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from omnizen.errors import UserError, nearest


@dataclass(frozen=True, slots=True)
class Masks:
    """Which elements of each named parameter exist.

    Args:
        kept: bool by parameter name, each of its parameter's shape; True is kept. Parameters that are not named
            are whole.

    Example:
        >>> masks = Masks({"weight": torch.tensor([[True, False]])}); masks.density
        0.5
    """

    kept: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        for name, mask in self.kept.items():
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
                raise UserError(f"the mask of {name} must be a bool tensor, got {getattr(mask, 'dtype', mask)!r}")

    @property
    def density(self) -> float:
        """Fraction of the masked parameters' elements that is kept."""
        total = sum(mask.numel() for mask in self.kept.values())
        return sum(int(mask.sum()) for mask in self.kept.values()) / total if total else 1.0

    def of(self, model: nn.Module) -> Iterator[tuple[str, Parameter, Tensor]]:
        """Yield name, parameter and mask.

        Raises:
            UserError: for a mask of no parameter (names the nearest), or of another shape.
        """
        params = dict(model.named_parameters())
        for name, mask in self.kept.items():
            if name not in params:
                raise UserError(
                    f"mask of a parameter: {nearest(name, params, listed_by='model.named_parameters()')}"
                )
            if params[name].shape != mask.shape:
                raise UserError(
                    f"the mask of {name} has shape {list(mask.shape)}, the parameter {list(params[name].shape)}"
                )
            yield name, params[name], mask

    def zero(self, model: nn.Module) -> None:
        """Set the weights that do not exist to zero, NaN too."""
        with torch.no_grad():
            for _, param, mask in self.of(model):
                param.masked_fill_(~mask.to(param.device), 0.0)

    def enforce(self, model: nn.Module) -> list[RemovableHandle]:
        """Zero the weights that do not exist, and their gradients from now on; returns what takes it back."""
        self.zero(model)
        return [param.register_hook(_masked(~mask.to(param.device))) for _, param, mask in self.of(model)]

    def digests(self) -> dict[str, str]:
        """Return a short text for each mask, equal where masks are."""
        found = {}
        for name, mask in self.kept.items():
            data = mask.cpu().contiguous().view(torch.uint8).numpy().data
            digest = hashlib.blake2b(f"{list(mask.shape)}".encode(), digest_size=8)
            digest.update(data)
            found[name] = f"{digest.hexdigest()}, {int(mask.sum())} of {mask.numel()} kept"
        return found


def _masked(gone: Tensor):  # type: ignore[no-untyped-def]
    def hook(grad: Tensor) -> Tensor:
        return grad.masked_fill(gone, 0.0)

    return hook
