"""Folders that users name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def text_folder(help: str) -> Any:
    """Return the option that names a folder of texts."""
    return typer.Option("--text", parser=_named, metavar="FOLDER", help=help)


def _named(text: str) -> Path:
    """An empty name would mean the current folder; it comes from a variable that is not set."""
    if not text.strip():
        raise typer.BadParameter("the name of a folder is empty ('.' is the current folder)")
    return Path(text)
