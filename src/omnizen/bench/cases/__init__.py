"""Models with their data, made once and used by every method that is compared."""

from __future__ import annotations

from pathlib import Path

from omnizen.bench.cases.case import Case
from omnizen.errors import UserError, nearest

__all__ = ["CASES", "Case", "make_case"]

CASES = ("lm", "flights", "cnn")


def make_case(name: str, *, text: str | Path | None = None, corpus: str = "brown") -> Case:
    """Return a case with its data loaded.

    Args:
        name: one of `CASES`.
        text: for ``lm``, a folder of the user's own files instead of a corpus.
        corpus: for ``lm``, "brown" or "stdlib".

    Raises:
        UserError: an unknown name, or data that cannot be had.

    Example:
        >>> case = make_case("lm", corpus="stdlib")
        >>> model = case.make_model(sparse=True, seed=0)
        >>> batch = next(case.batches(rank=0, size=4, batch=32, seed=0))
        >>> case.loss(model, batch).backward()
    """
    if name not in CASES:
        raise UserError(f"unknown case: {nearest(name, CASES)}")
    if name == "lm":
        from omnizen.bench.cases.lm import lm_case

        return lm_case(text=text, corpus=corpus)
    if text is not None:
        raise UserError(f"the case {name!r} reads no text; only 'lm' does")
    if name == "flights":
        from omnizen.bench.cases.flights import flights_case

        return flights_case()
    from omnizen.bench.cases.cnn import cnn_case

    return cnn_case()
