"""How a worker ends: never later than its limit, nor than whoever started it, nor in a destructor that hangs."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable

EVERY_S = 0.5
LAST_RESORT_S = 5.0


def watch(limit_s: float, on_limit: Callable[[str], None]) -> None:
    """End this process when the limit passes (after telling why) or its parent is gone.

    A thread does it, as a collective that hangs never comes back to the interpreter. Where that thread cannot run
    either, as what hangs holds the interpreter's lock, ``faulthandler`` writes all stacks and ends the process.
    """
    faulthandler.dump_traceback_later(limit_s + LAST_RESORT_S, exit=True)
    parent, deadline = os.getppid(), time.monotonic() + limit_s

    def guard() -> None:
        while time.monotonic() < deadline:
            if os.getppid() != parent:
                os._exit(4)
            time.sleep(EVERY_S)
        on_limit(f"did not finish within {limit_s:.0f} s")
        os._exit(3)

    threading.Thread(target=guard, name="guard", daemon=True).start()


def leave(status: int) -> None:
    """End this process at once, without taking its process groups down.

    destroy_process_group may wait for gloo's thread while that waits for the interpreter's lock (torch 2.13).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
