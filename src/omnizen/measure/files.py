"""Files that users name: written whole or not at all, and never over something else that lies there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omnizen.errors import UserError


def write_whole(path: str | Path, text: str) -> Path:
    """Write a text; readers see the old file or the new one, never a part.

    A symbolic link stays one. What is no plain file (a pipe, /dev/null) is written to and stays what it is.

    Args:
        path: where to write; missing folders are made.

    Raises:
        UserError: the file cannot be written; says what is in the way.

    Example:
        >>> write_whole("runs/first/plan.toml", "version = 1")  # doctest: +SKIP
        PosixPath('runs/first/plan.toml')
    """
    path = Path(path)
    with _draft(path) as draft:
        if draft is None:
            with path.open("a", encoding="utf-8") as device:
                device.write(text)
        else:
            draft.write_text(text, encoding="utf-8")
            draft.replace(path.resolve())
    return path


def check_can_write(path: str | Path) -> None:
    """Find out before long work whether its result can be written.

    Raises:
        UserError: it cannot; says what is in the way.
    """
    with _draft(Path(path)) as draft:
        if draft is not None:
            draft.touch()


def check_apart(out: str | Path, *inputs: str | Path) -> None:
    """Refuse to write over what is read.

    Raises:
        UserError: the file to write is one of the others.
    """
    for each in inputs:
        if Path(out).resolve() == Path(each).resolve():
            raise UserError(f"{out} is read, and would be lost; give another file to write")


@contextmanager
def _draft(path: Path) -> Iterator[Path | None]:
    """Give a file beside the one to write, gone afterwards; None where something stands that is no plain file."""
    if not path.name or path.is_dir():
        raise UserError(f"{path} cannot be written: it is a folder; give the name of a file in it")
    above = next((folder for folder in path.parents if folder.exists()), path.parent)
    if above.exists() and not above.is_dir():
        raise UserError(f"{path} cannot be written: {above} is a file, not a folder")
    target = path.resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and (not path.is_file() or path.parts[:2] == ("/", "dev")):
            yield None  # a plain file below /dev is where the caller's output goes
            return
        try:
            yield draft
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
