"""The Brown corpus (Francis and Kučera, 1964): a million words of American English, lower-cased."""

from __future__ import annotations

import re

from omnizen.data.archive import tar_members
from omnizen.data.cache import Arrays, prepared
from omnizen.data.fetch import obtain
from omnizen.data.sets import SETS
from omnizen.data.tokens import VOCABULARY, TokenCorpus, corpus_of, encode

_DOCUMENT = re.compile(r"package/c[a-r]\d\d")


def load() -> TokenCorpus:
    """Return the corpus: 1,161,192 tokens, 49,816 words with the unknown one.

    Raises:
        UserError: it is not in the cache and cannot be fetched.
    """
    row = SETS["brown"]

    def make() -> Arrays:
        documents = tar_members(obtain(row), lambda name: _DOCUMENT.fullmatch(name) is not None)
        return encode((words_of(content) for _, content in documents), vocabulary=VOCABULARY)

    return corpus_of(row.name, prepared(row.name, row.sha256[:12], make))


def words_of(content: bytes) -> list[str]:
    """Return the words of a tagged document (``The/at Fulton/np-tl``), lower-cased, without their tags."""
    return [tagged.rsplit("/", 1)[0].lower() for tagged in content.decode("latin-1").split()]
