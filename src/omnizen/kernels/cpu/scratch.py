"""Memory for results whose size is not known yet, kept by each thread: fresh pages cost more than the writing."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

KEPT_BYTES = 64 * 2**20
"""A larger buffer is given back at once."""


class _Held(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[str, np.ndarray[Any, Any]] = {}


_held = _Held()


def scratch(name: str, size: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Return ``size`` elements of this thread's buffer of a name; whoever asks for it again overwrites them."""
    nbytes = size * np.dtype(dtype).itemsize
    buffer = _held.buffers.get(name)
    if buffer is None or buffer.nbytes < nbytes:
        buffer = np.empty(nbytes, np.uint8)
        if nbytes <= KEPT_BYTES:
            _held.buffers[name] = buffer
    return buffer[:nbytes].view(dtype)
