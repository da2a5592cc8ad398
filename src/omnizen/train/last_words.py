"""What a rank says when an error that names its cause ends it: one line, not a traceback for each rank."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from omnizen.errors import UserError, of_user_code

SHOW_ALL = "OMNIZEN_TRACEBACK"
"""Environment variable that, set to anything, brings the whole traceback back."""


def speak_briefly() -> None:
    """Let a ``UserError`` that nobody catches end this process with one line; all other errors are as ever.

    Under a launcher every rank raises it, and the sentence would stand amid as many tracebacks. A hook of the
    program's own stays.
    """
    if sys.excepthook is sys.__excepthook__ and SHOW_ALL not in os.environ:
        sys.excepthook = _in_a_line


def _in_a_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, UserError):
        sys.__excepthook__(kind, error, trace)
        return
    rank = os.environ.get("RANK", "0")
    print(f"omnizen, rank {rank}: {of_user_code(error)} [{SHOW_ALL}=1 shows all]", file=sys.stderr, flush=True)
