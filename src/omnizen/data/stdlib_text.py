"""Token corpora that need no download: Python's own source, or any folder of text files."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from omnizen.data.cache import Arrays, prepared
from omnizen.data.tokens import VOCABULARY, TokenCorpus, corpus_of, encode, split
from omnizen.errors import UserError

_PREPARATION = 1
_NOT_STDLIB = frozenset({"site-packages", "dist-packages", "__pycache__"})


def load(text: str | Path | None = None, *, vocabulary: int = VOCABULARY) -> TokenCorpus:
    """Return Python's standard library, or the text files below a folder, as tokens.

    The order of files is that of their names, so the same files give the same corpus on every machine.

    Args:
        text: a folder to read instead; hidden files and folders are passed over, as are files that are not text.
        vocabulary: most words to keep, the unknown word included.

    Raises:
        UserError: there is no such folder, or nothing in it that can be read as text.
    """
    if text is None:
        root, name = Path(sysconfig.get_path("stdlib")), "stdlib"
        files = list(_files(root, suffix=".py", without=_NOT_STDLIB))
    else:
        root, name = Path(text).expanduser(), str(text)
        if not root.is_dir():
            what = "is not a folder" if root.exists() else "does not exist"
            raise UserError(f"{root} {what}; give a folder of text files")
        files = list(_files(root))
    if not files:
        raise UserError(f"the folder {root} has no {'text' if text else 'Python'} files")

    def make() -> Arrays:
        reader = _Reader(root, files)
        arrays = encode(map(split, reader), vocabulary=vocabulary)
        if not arrays["ids"].size:
            raise UserError(f"nothing in {root} can be used as text: {reader.account() or 'its files are empty'}")
        return arrays | {"note": np.frombuffer(reader.account().encode(), np.uint8)}

    arrays = prepared("text", _key(root, files, vocabulary), make)
    return corpus_of(name, arrays, arrays["note"].tobytes().decode())


class _Reader:
    """Gives the files' texts and counts what could not be used."""

    def __init__(self, root: Path, files: list[Path]) -> None:
        self._root, self._files = root, files
        self._binary: list[Path] = []
        self._unreadable: list[tuple[Path, str]] = []

    def __iter__(self) -> Iterator[str]:
        for path in self._files:
            try:
                content = path.read_bytes()
            except OSError as error:
                self._unreadable.append((path, error.strerror or str(error)))
                continue
            # Latin-1 and UTF-16 files hold text too, but which is a guess; only UTF-8 is taken.
            try:
                decoded = content.decode("utf-8-sig")
            except UnicodeDecodeError:
                decoded = "\0"
            if "\0" in decoded:
                self._binary.append(path)
            else:
                yield decoded

    def account(self) -> str:
        """Return how many files were left out and why; empty if none was."""
        said = []
        if self._binary:
            said.append(
                f"{len(self._binary)} of {len(self._files)} files are not UTF-8 text and were left out "
                f"(first: {self._binary[0]})"
            )
        if self._unreadable:
            path, reason = self._unreadable[0]
            said.append(
                f"{len(self._unreadable)} of {len(self._files)} files are unreadable and were left out "
                f"(first: {path}: {reason})"
            )
        return "; ".join(said)


def _files(root: Path, *, suffix: str = "", without: frozenset[str] = frozenset()) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name not in without)
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(suffix) and not name.startswith(".") and path.is_file():
                yield path


def _key(root: Path, files: list[Path], vocabulary: int) -> str:
    listing = hashlib.sha256(f"{_PREPARATION} {vocabulary} {root.resolve()}".encode())
    for path in files:
        stat = path.stat()
        listing.update(
            f"{path.relative_to(root)} {stat.st_size} {stat.st_mtime_ns}\n".encode(errors="surrogateescape")
        )
    return listing.hexdigest()[:16]
