"""Token corpora: text to numbers, most frequent word first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnizen.data.cache import Arrays

UNKNOWN = "<unk>"
UNKNOWN_ID = 0
VOCABULARY = 50_000
_TOKEN = re.compile(r"[^\W\d]\w*|\d+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class TokenCorpus:
    """A text as a stream of word numbers.

    Args:
        name: where it came from.
        ids: ``[num_tokens]`` int32 in ``[0, len(words))``.
        words: the vocabulary; 0 is the unknown word, the rest follow by falling frequency: a number is a rank.
        note: what was left out, for people to read; empty if nothing.
    """

    name: str
    ids: NDArray[np.int32]
    words: list[str]
    note: str = ""

    @property
    def num_words(self) -> int:
        """Rows that an embedding of this vocabulary has."""
        return len(self.words)


def split(text: str) -> list[str]:
    """Return names, numbers and single signs, in order.

    Example:
        >>> split("x2 += f(41)")
        ['x2', '+', '=', 'f', '(', '41', ')']
    """
    return _TOKEN.findall(text)


def encode(documents: Iterable[list[str]], *, vocabulary: int = VOCABULARY) -> Arrays:
    """Number the words of documents by falling frequency; equally frequent ones by first use.

    Args:
        documents: lists of words, read once, one at a time.
        vocabulary: most words to keep, the unknown word included; the rest become unknown.

    Returns:
        ``ids`` (int32) and ``words`` (UTF-8, one a line), the form that the cache keeps.
    """
    first_use: defaultdict[str, int] = defaultdict()
    first_use.default_factory = first_use.__len__
    pieces = [
        np.fromiter(map(first_use.__getitem__, words), dtype=np.int32, count=len(words)) for words in documents
    ]
    stream = np.concatenate(pieces) if pieces else np.zeros(0, np.int32)
    counts = np.bincount(stream, minlength=len(first_use))
    kept = np.argsort(-counts, kind="stable")[: vocabulary - 1]
    number = np.full(len(first_use), UNKNOWN_ID, np.int32)
    number[kept] = np.arange(1, len(kept) + 1, dtype=np.int32)
    names = list(first_use)
    text = "\n".join([UNKNOWN, *(names[i] for i in kept)])
    return {"ids": number[stream], "words": np.frombuffer(text.encode(), np.uint8)}


def corpus_of(name: str, arrays: Arrays, note: str = "") -> TokenCorpus:
    """Return the corpus that `encode` put into arrays."""
    return TokenCorpus(name, arrays["ids"], arrays["words"].tobytes().decode().split("\n"), note)
