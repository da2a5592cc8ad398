"""The ``omnizen`` command. Each command lives in a module of its own, which imports what it needs when called."""

from __future__ import annotations

import sys

import typer

from omnizen._version import __version__
from omnizen.cli import bench, check, cite, data, demo, lab, measure, plan, report
from omnizen.errors import OmnizenError

app = typer.Typer(
    name="omnizen",
    help="Train one PyTorch model across whatever machines you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
bench.register(app)
demo.register(app)


def main() -> None:
    """Run the command; errors that users can mend are one line on standard error, without a traceback."""
    try:
        app()
    except OmnizenError as error:
        typer.echo(f"omnizen: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
