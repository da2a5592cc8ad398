"""The cache folder: locks, atomic writes, and arrays that are prepared once and then read back."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from omnizen.errors import UserError

Arrays = dict[str, NDArray]
LOCK_LIMIT_S = 600.0
_UNFINISHED = "unfinished-"


def cache_folder() -> Path:
    """Return where data sets are kept: ``OMNIZEN_CACHE``, else the XDG cache folder's ``omnizen``.

    Raises:
        UserError: the folder cannot be made or written to.
    """
    given = os.environ.get("OMNIZEN_CACHE")
    xdg = os.environ.get("XDG_CACHE_HOME")
    folder = Path(given) if given else (Path(xdg) if xdg else Path.home() / ".cache") / "omnizen"
    try:
        (folder / "data").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the cache folder {folder} cannot be made ({error.strerror}); "
            "set OMNIZEN_CACHE to a folder you may write to"
        ) from error
    return folder / "data"


@contextmanager
def locked(name: str, *, limit_s: float = LOCK_LIMIT_S) -> Iterator[None]:
    """Hold the cache's lock of that name, so that one process works and the others wait for its result.

    The lock is the operating system's: it ends with its process, however that ends.

    Raises:
        UserError: another process held the lock for longer than ``limit_s``.
    """
    import fcntl

    path = cache_folder() / f"{name}.lock"
    deadline = time.monotonic() + limit_s
    with _opened(path) as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise UserError(f"another process has held {path} for more than {limit_s:.0f} s") from None
                time.sleep(0.05)
        yield


def _opened(path: Path) -> TextIO:
    try:
        return path.open("w")
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path} cannot be written ({error.strerror}); make room or set OMNIZEN_CACHE to a folder you may write to"
    )


@contextmanager
def work_folder() -> Iterator[Path]:
    """Give a temporary folder on the cache's file system: a finished file is moved into place at once.

    Folders that killed processes left are removed: each is locked as long as its process works in it.
    """
    cache = cache_folder()
    with ExitStack() as stack:
        with locked("unfinished"):
            for left in cache.glob(f"{_UNFINISHED}*"):
                with _folder_lock(left) as free:
                    if free:
                        shutil.rmtree(left, ignore_errors=True)
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(dir=cache, prefix=_UNFINISHED))
            except OSError as error:
                raise _unusable(cache, error) from error
            stack.enter_context(_folder_lock(Path(folder)))
        yield Path(folder)


@contextmanager
def _folder_lock(folder: Path) -> Iterator[bool]:
    """Lock a folder if nobody else has; tells whether it is now locked."""
    import fcntl

    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # it is gone, or another user's
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def prepared(name: str, key: str, make: Callable[[], Arrays]) -> Arrays:
    """Return the arrays that ``make`` gives, from the cache if they were made before under the same key.

    Args:
        name: of the set; with ``key`` it names the file.
        key: changes whenever the result would (digest of the source, version of the preparation).
        make: called at most once on a machine, by one process while others wait.

    Raises:
        UserError: the cached file is damaged; says which to remove.
    """
    path = cache_folder() / f"{name}-{key}.npz"
    if not path.exists():
        with locked(f"prepare-{path.stem}"):
            if not path.exists():
                arrays = make()
                with work_folder() as folder:
                    try:
                        np.savez(folder / "arrays.npz", allow_pickle=False, **arrays)
                        (folder / "arrays.npz").replace(path)
                    except OSError as error:
                        raise _unusable(path, error) from error
    try:
        with np.load(path, allow_pickle=False) as file:
            return {member: file[member] for member in file.files}
    except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        raise UserError(f"the cached file {path} is damaged ({error}); remove it and run again") from error
