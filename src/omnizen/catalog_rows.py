"""What a row of the catalogue holds."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnizen.protocols import Codec, Reducer, Selector

SHORT = {"zen": "zen-coo"}
"""Other names of schemes."""
LAZY = "lazy"
"""Name of a scheme in plans; it belongs to training as a whole, so it is no row of the catalogue of reducers."""
LAZY_SUMMARY = "gradients to owners, who update the rows and send them to those whose next batch reads them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What all rows hold."""

    factory: str
    """``"module:function"`` below ``omnizen``, imported when first used."""
    summary: str
    """One line for lists."""
    saves: str
    """What it saves, and what that costs."""
    citation: str
    """Where the method comes from."""
    kinds: tuple[str, ...]
    """Gradients that it applies to: "dense", "row-sparse", "element-sparse"."""
    lossy: bool = False
    """Whether what arrives may differ from what was sent by more than the order of a sum; never chosen unasked."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameters of this row."""

    def parameters(self) -> dict[str, inspect.Parameter]:
        """Return what the row's factory takes, by name: first the parts that it goes around, then settings."""
        return dict(inspect.signature(self._factory()).parameters)

    def _factory(self) -> Callable[..., Any]:
        module, function = self.factory.split(":")
        found: Callable[..., Any] = getattr(importlib.import_module(f"omnizen.{module}"), function)
        return found

    def make(self, *wrapped: Any, **settings: Any) -> Any:
        """Make what the row stands for; subclasses say what that is."""
        return self._made(wrapped, settings)

    def _made(self, wrapped: Sequence[Any], settings: Mapping[str, Any]) -> Any:
        return self._factory()(*wrapped, **{**self.settings, **settings})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducerRow(Row):
    """A way to combine contributions."""

    def make(self, **settings: Any) -> Reducer:
        """Make the reducer, with the row's hyper-parameters unless others are given."""
        made: Reducer = self._made((), settings)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecRow(Row):
    """A way to pack a tensor."""

    def make(self, **settings: Any) -> Codec:
        """Make the codec, with the row's hyper-parameters unless others are given."""
        made: Codec = self._made((), settings)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorRow(Row):
    """A way to choose the elements that are sent."""

    def make(self, **settings: Any) -> Selector:
        """Make the selector, with the row's hyper-parameters unless others are given."""
        made: Selector = self._made((), settings)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperRow(Row):
    """What is put around reducers, or between codecs."""

    def make(self, *wrapped: Any, **settings: Any) -> Any:
        """Wrap; refuses what does not fit together."""
        return self._made(wrapped, settings)
