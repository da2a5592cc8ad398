"""Records that live in TOML files: validated, versioned, and strict about keys."""

from __future__ import annotations

import hashlib
import json
import reprlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from omnizen.errors import UserError, nearest
from omnizen.measure.files import write_whole


class Record(BaseModel):
    """An immutable table of a file; a key that does not exist is an error that names the nearest one."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            known = cls.__pydantic_fields__  # model_fields takes microseconds, for each of very many records
            for key in data:
                if key not in known:
                    raise ValueError(f"unknown key: {nearest(key, known)}")
        return data


FACTS = "facts, as `omnizen measure` writes them"
PLAN = "a plan, as `omnizen plan` writes it"
MARKS = {
    FACTS: {"devices", "links", "meetings", "crowd", "gradients", "step", "prices"},
    PLAN: {"strategy", "execution", "tensors", "prediction", "facts_digest", "alternatives"},
    "rates of hosts, as `omnizen lab --rates` reads them": {"hosts"},
    "the settings of a Python project": {"project", "build-system", "tool"},
}
"""Kinds of TOML files that are taken for one another, by keys that no other kind has."""


class TomlFile(Record):
    """A record that is a whole file; ``kind`` is what errors call such files."""

    kind: ClassVar[str] = "records"

    def save(self, path: str | Path) -> Path:
        """Write the file; see ``write_whole``.

        Raises:
            UserError: the file cannot be written.
        """
        return write_whole(path, self.to_toml())

    def to_toml(self) -> str:
        """Return the file's text: of nested records only what is not as it is by default."""
        top = {name: value for name, value in self if isinstance(value, int | str)}
        return tomli_w.dumps(top | self.model_dump(mode="json", exclude_none=True, exclude_defaults=True))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file.

        Raises:
            UserError: when it is missing, cannot be read, is not TOML, or holds a wrong key or value.
        """
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
        except FileNotFoundError as error:
            raise UserError(f"there is no file {path}") from error
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not a text in UTF-8 (at byte {error.start}), as TOML must be") from error
        return cls.from_toml(text, source=str(path))

    @classmethod
    def from_toml(cls, text: str, source: str = "the text") -> Self:
        """Read from text; ``source`` is what errors call it."""
        if not text.strip():
            raise UserError(f"{source} is empty; wanted here: {cls.kind}")
        try:
            table = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            other = _kind_of_text(text)
            reason = f"holds {other}; wanted here: {cls.kind}" if other else f"is not valid TOML: {error}"
            raise UserError(f"{source} {reason}") from error
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            other = _kind_of_table(table)
            if other and other != cls.kind:
                raise UserError(f"{source} holds {other}; wanted here: {cls.kind}") from error
            raise UserError(f"{source}: {_first_problem(error)}") from error

    def digest(self, *, without: frozenset[str] = frozenset()) -> str:
        """Return 16 hexadecimal digits that change when any value does, except those of the keys left out."""
        data = self.model_dump(mode="json", exclude_none=True, exclude=set(without))
        text = json.dumps(data, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] not in ("missing", "value_error"):
        message += f", got {reprlib.repr(first['input'])}"
    return f"{where}: {message}" if where else message


def _kind_of_table(table: Mapping[str, Any]) -> str:
    """Return the kind of file that a table is from, by the keys that only this kind has; empty when unclear."""
    found = [kind for kind, marks in MARKS.items() if marks & set(table)]
    return found[0] if len(found) == 1 else ""


def _kind_of_text(text: str) -> str:
    """Return what a text is that is no TOML; empty when unclear."""
    start = text.lstrip()
    if start.startswith("<"):
        return "a page (HTML)"
    try:
        first = json.loads(start.split("\n", 1)[0] if start.startswith('{"') else start)
    except (ValueError, RecursionError):
        return ""
    if isinstance(first, dict) and "event" in first:
        return "events of a run (JSON)"
    if isinstance(first, dict) and "bench" in first:
        return "rows of benchmarks (JSON)"
    return "JSON"
