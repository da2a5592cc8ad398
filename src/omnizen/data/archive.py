"""Read members out of downloaded packages without installing or unpacking them to disk."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from omnizen.errors import UserError

READ_LIMIT_S = 120.0


def tar_members(archive: Path | io.BytesIO, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the regular files that are wanted, in the order of their names."""
    source = {"name": archive} if isinstance(archive, Path) else {"fileobj": archive}
    with tarfile.open(**source) as tar:
        for member in sorted(tar.getmembers(), key=lambda m: m.name):
            if member.isfile() and wanted(member.name):
                handle = tar.extractfile(member)
                assert handle is not None
                yield member.name, handle.read()


def deb_members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the wanted files of a Debian package.

    Raises:
        UserError: there is no dpkg-deb here, or it failed.
    """
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=READ_LIMIT_S, check=True)
    except FileNotFoundError as error:
        raise UserError("reading a Debian package needs dpkg-deb, which this machine does not have") from error
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{archive} could not be read: {error}") from error
    yield from tar_members(io.BytesIO(done.stdout), wanted)


def wheel_member(archive: Path, name: str) -> bytes:
    """Return the content of one file of a wheel."""
    with zipfile.ZipFile(archive) as wheel:
        return wheel.read(name)
