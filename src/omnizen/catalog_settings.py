"""Settings of methods as users write them, checked by name and, where a method does not look itself, by type."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from omnizen.catalog_rows import Row
from omnizen.errors import UserError, nearest

PARTS = ("Reducer", "Codec", "Selector")
"""Types of parameters that are methods themselves; all others are settings."""
TYPES: dict[str, tuple[type, ...]] = {
    "float": (int, float), "int": (int,), "bool": (bool,), "str": (str,), "None": (type(None),)
}  # fmt: skip


def check_settings(name: str, row: Row, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a method does not have.

    Raises:
        UserError: says what was given, what is allowed and which is nearest.

    Example:
        >>> from omnizen.catalog import REDUCERS
        >>> check_settings("topk", REDUCERS["topk"], {"densty": 0.1})
        Traceback (most recent call last):
        omnizen.errors.UserError: topk has no such setting: got 'densty'; did you mean 'density'? ...
    """
    known, parts = _settings(row), _parts(row)
    for word, value in settings.items():
        if word in parts:
            if isinstance(value, (bool, int, float, str, type(None))):
                raise UserError(f"{name}: {word} is a {parts[word].annotation}, got {value!r}")
            continue
        if word not in known:
            if not known:
                raise UserError(f"{name} has no settings, got {word!r}")
            raise UserError(f"{name} has no such setting: {nearest(word, known)}")
    for word, setting in known.items():
        if setting.default is inspect.Parameter.empty and word not in settings:
            raise UserError(f"{name} needs {word}=")


def check_types(name: str, row: Row, settings: Mapping[str, Any]) -> None:
    """Refuse settings of another type than a method's: for when it broke over one that it does not look at itself.

    Raises:
        UserError: names the setting, its type and what was given.
    """
    for word, setting in _settings(row).items():
        wanted = str(setting.annotation).split(" | ")
        plain = word in settings and all(one in TYPES for one in wanted)
        if plain and not any(_is(settings[word], one) for one in wanted):
            raise UserError(f"{name}: {word} is {' or '.join(wanted)}, got {settings[word]!r}")


def made(name: str, row: Row, settings: Mapping[str, Any], *wrapped: Any) -> Any:
    """Make what a row stands for, from settings that a user wrote.

    Raises:
        UserError: for settings that the method does not have or cannot use.
    """
    check_settings(name, row, settings)
    try:
        return row.make(*wrapped, **settings)
    except TypeError:
        check_types(name, row, settings)
        raise


def check_parts(name: str, row: Row, given: int) -> None:
    """Refuse a wrapper around too many or too few methods.

    Raises:
        UserError: says around what it goes.
    """
    parts = list(_parts(row))
    if given != len(parts):
        methods = "method" if len(parts) == 1 else "methods"
        raise UserError(f"{name} goes around {len(parts)} {methods}: {name}({', '.join(parts)}); got {given}")


def example(name: str, row: Row) -> str:
    """Return how a setting of this method is written, for the end of a sentence; empty where it has none.

    Example:
        >>> from omnizen.catalog import REDUCERS
        >>> example("qsgd", REDUCERS["qsgd"])
        ', as in qsgd(levels=7)'
    """
    first = next(iter(_settings(row).values()), None)
    return f", as in {name}({first.name}={first.default!r})" if first is not None else "; it has none"


def _parts(row: Row) -> dict[str, inspect.Parameter]:
    return {word: p for word, p in row.parameters().items() if p.annotation in PARTS}


def _settings(row: Row) -> dict[str, inspect.Parameter]:
    return {word: p for word, p in row.parameters().items() if p.annotation not in PARTS}


def _is(value: object, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "bool"
    return isinstance(value, TYPES[wanted])
