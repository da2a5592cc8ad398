"""States of training on the disk of one rank, so that a search can go on after it was ended anywhere."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from omnizen.errors import UserError
from omnizen.train.tuning.task import Weights


class Shelf:
    """Weights by name.

    Args:
        folder: where they are written.
        writes: whether this rank writes; the others keep them in memory only.
    """

    def __init__(self, folder: Path, *, writes: bool) -> None:
        self.folder, self.writes = folder, writes
        self._held: dict[str, Weights] = {}

    def put(self, name: str, weights: Weights) -> None:
        """Keep weights; on the disk they are there whole or not at all."""
        self._held[name] = weights
        self._write(self.path(name), weights)

    def publish(self, name: str) -> None:
        """Write weights as ``weights.pt`` too, for the user."""
        weights = self.get(name)
        if weights is not None:
            self._write(self.folder / "weights.pt", weights)

    def _write(self, path: Path, weights: Weights) -> None:
        if self.writes:
            part = path.with_suffix(".part")
            torch.save(weights, part)
            part.replace(path)

    def get(self, name: str) -> Weights | None:
        """Return weights; None on ranks that neither write nor have seen them.

        Raises:
            UserError: the file is gone, or cannot be read.
        """
        if name not in self._held and self.writes:
            try:
                self._held[name] = torch.load(self.path(name), weights_only=True)
            except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
                raise UserError(
                    f"{self.path(name)} cannot be read ({error}), and the search goes on from it; begin anew in "
                    "another folder"
                ) from error
        return self._held.get(name)

    def keep(self, names: Iterable[str]) -> None:
        """Let go of all others."""
        kept = set(names)
        self._held = {name: weights for name, weights in self._held.items() if name in kept}
        if self.writes:
            for path in self.folder.glob("state-*.pt"):
                if path.stem.removeprefix("state-") not in kept:
                    path.unlink()

    def path(self, name: str) -> Path:
        """Return the file of a name."""
        return self.folder / f"state-{name}.pt"


def write_json(path: Path, value: Any) -> None:
    """Write a file that is there whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.replace(path)
