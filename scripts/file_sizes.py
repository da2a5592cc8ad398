"""Fail when a source file is longer than the house rule allows."""

import sys
from pathlib import Path

LIMIT_LINES = 400
long = [
    (len(path.read_text().splitlines()), path)
    for folder in ("src", "tests", "scripts")
    for path in sorted(Path(folder).rglob("*.py"))
]
over = [f"{path}: {lines} lines, the limit is {LIMIT_LINES}" for lines, path in long if lines > LIMIT_LINES]
over += [f"{path}: name the idea instead of 'utils'" for _, path in long if path.stem == "utils"]
print("\n".join(over) or f"{len(long)} files within {LIMIT_LINES} lines")
sys.exit(bool(over))
