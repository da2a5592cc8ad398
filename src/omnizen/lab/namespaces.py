"""Network namespaces: whether they can be had, what runs in them, settings inside them."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from omnizen.errors import OmnizenError, UserError

NAMED = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_COMMAND_LIMIT_S = 60.0


def tool(arguments: list[str], stdin: str = "") -> str:
    """Run ``ip`` or ``tc`` and return what it printed; raises ``UserError`` with what it said."""
    try:
        done = subprocess.run(
            arguments, input=stdin, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OmnizenError(f"{' '.join(arguments)} did not end within {_COMMAND_LIMIT_S:.0f} s") from error
    if done.returncode:
        raise UserError(f"{' '.join(arguments)} failed: {' '.join(done.stderr.split())}")
    return done.stdout


def in_own_thread(body: Callable[[], None]) -> None:
    """Run a body that may change its thread's namespace in a thread that ends with it."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="omnizen-namespace", daemon=True)
    thread.start()
    thread.join(2 * _COMMAND_LIMIT_S)
    if thread.is_alive():
        raise OmnizenError(f"work in a network namespace did not end within {2 * _COMMAND_LIMIT_S:.0f} s")
    if errors:
        raise errors[0]


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def write_settings(names: Iterable[str], settings: dict[str, str]) -> None:
    """Write kernel settings (paths under ``/proc/sys/net``) in each named namespace."""

    def work() -> None:
        for name in names:
            with (NAMED / name).open("rb") as namespace:
                _call("setns", namespace.fileno(), _CLONE_NEWNET)
            for key, value in settings.items():
                path = Path("/proc/sys/net") / key
                if path.exists():  # a kernel without IPv6 has no settings for it
                    path.write_text(value)

    in_own_thread(work)


def pids_inside(names: Iterable[str]) -> list[int]:
    """Return the processes, other than this one, that are in any of the named namespaces."""
    inside = set()
    for name in names:
        try:
            found = (NAMED / name).stat()
        except FileNotFoundError:
            continue
        inside.add((found.st_dev, found.st_ino))
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                found = (entry / "ns/net").stat()
            except OSError:  # it has ended, or is ending
                continue
            if (found.st_dev, found.st_ino) in inside:
                pids.append(int(entry.name))
    return pids


def kill_all(find: Callable[[], list[int]], limit_s: float = 10.0) -> int:
    """Kill what ``find`` returns until it returns nothing; return how many processes that were."""
    end_s, killed = time.monotonic() + limit_s, set()
    while pids := find():
        if time.monotonic() > end_s:
            raise OmnizenError(f"processes {pids} do not end although they were killed {limit_s:.0f} s ago")
        for pid in pids:
            killed.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)
    return len(killed)


SHAPED = "qdisc add dev probe1 root tbf rate 10mbit burst 70kb latency 200ms"


def _probe() -> None:
    _call("unshare", _CLONE_NEWNET)
    tool(["ip", "link", "add", "probe0", "type", "bridge"])
    tool(["ip", "link", "add", "probe1", "type", "veth", "peer", "name", "probe2"])
    tool(["tc", *SHAPED.split()])


@functools.cache
def available() -> str | None:
    """Return why no lab can be built on this machine, with what to do about it, or None when one can.

    Example:
        >>> reason = available()
        >>> reason is None or "lab" in reason
        True
    """
    if sys.platform != "linux":
        return f"the lab needs Linux network namespaces, and this is {sys.platform}; use a Linux machine"
    if os.geteuid() != 0:
        return "the lab needs root to make network namespaces; run it with sudo or in a privileged container"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"the lab needs the program {program!r}; install the package iproute2"
    try:
        in_own_thread(_probe)
    except (OSError, OmnizenError) as error:
        return f"the lab cannot build shaped links here ({error}); run it where the kernel allows them"
    return None


def require() -> None:
    """Raise a ``UserError`` with the reason where no lab can be built."""
    reason = available()
    if reason:
        raise UserError(reason)
