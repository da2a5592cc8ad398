"""The ``omnizen`` command. Each command lives in a module of its own, which imports what it needs when called."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn

import typer

from omnizen._version import __version__
from omnizen.cli import bench, check, cite, data, demo, lab, measure, plan, report, tune
from omnizen.errors import OmnizenError

app = typer.Typer(
    name="omnizen",
    help="Train one PyTorch model across whatever machines you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


NO_MEMORY = "can't allocate memory"
"""Part of what torch says then."""


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and end.")) -> None:
    """Train one PyTorch model across whatever machines you have."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


check.register(app)
cite.register(app)
data.register(app)
lab.register(app)
measure.register(app)
plan.register(app)
report.register(app)
tune.register(app)
bench.register(app)
demo.register(app)


def main() -> None:
    """Run the command; errors that users can mend are one line on standard error, without a traceback."""
    try:
        app()
        _flush()  # here, where an error is still one line
    except OmnizenError as error:
        _fail(str(error))
    except OSError as error:  # a file or folder, or standard output: the disk is full, access is denied
        _fail(f"{error.filename or 'the output'} cannot be used: {error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and NO_MEMORY not in str(error):
            raise
        _fail("there is not enough memory for this; ask for fewer elements, rows or workers")


def _fail(reason: str) -> NoReturn:
    with suppress(OSError):  # nobody may be reading, and the exit code says it too
        typer.echo(f"omnizen: {reason}", err=True)
    try:
        _flush()
    except OSError:
        # What could not be written stays in the buffer, and the interpreter would complain of it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)


def _flush() -> None:
    if sys.stdout is not None:  # as it is where the caller has closed it
        sys.stdout.flush()


if __name__ == "__main__":
    main()
