"""Options that several benchmarks share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JSON = Annotated[Path | None, typer.Option("--json", help="Append the rows to this file, one JSON object a line.")]
RATE = Annotated[str, typer.Option(help="Rate of each link, both ways: 100mbit, 1gbit.")]
CPU = Annotated[str, typer.Option(help="Comma-separated relative speeds, 1 for the fastest.")]
DILATION = Annotated[str, typer.Option(help="Slow links and processors: auto, or a factor.")]
