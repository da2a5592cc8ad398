"""How many bytes a payload takes on average."""

from __future__ import annotations

from omnizen.protocols import Codec
from omnizen.types import Sparsity


def mean_bytes(codec: Codec, pattern: Sparsity) -> float:
    """Return the bytes that a payload takes on average: what the codec says, else the middle of its range."""
    expected = getattr(codec, "mean_bytes", None)
    if expected is not None:
        return float(expected(pattern))
    return sum(codec.nbytes(pattern)) / 2
