"""An error that names its cause is one line of each rank; other errors keep their tracebacks."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from omnizen.errors import UserError
from omnizen.train.last_words import speak_briefly
if "own" in sys.argv:
    sys.excepthook = lambda *_: print("my own hook", file=sys.stderr)
speak_briefly()
raise (UserError("momentum: a number below 1, got 3") if "user" in sys.argv else RuntimeError("a bug"))
"""


@pytest.mark.parametrize(
    ("words", "env", "lines", "says"),
    [
        (["user"], {"RANK": "3"}, 1, "omnizen, rank 3: UserError: momentum: a number below 1, got 3"),
        (["user"], {"OMNIZEN_TRACEBACK": "1"}, 4, "Traceback"),
        (["bug"], {}, 4, "RuntimeError: a bug"),
        (["user", "own"], {}, 1, "my own hook"),
    ],
)
def test_only_errors_that_name_their_cause_are_brief(words, env, lines, says):
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert found.returncode == 1
    assert says in found.stderr
    said = len(found.stderr.splitlines())
    assert said == 1 if lines == 1 else said >= 3
