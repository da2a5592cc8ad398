"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): small grey pictures of clothes."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnizen.data.archive import deb_members
from omnizen.data.cache import Arrays, prepared
from omnizen.data.fetch import obtain
from omnizen.data.sets import SETS
from omnizen.errors import UserError

_FILES = {
    "train-images-idx3-ubyte.gz": "train_images",
    "train-labels-idx1-ubyte.gz": "train_labels",
    "t10k-images-idx3-ubyte.gz": "test_images",
    "t10k-labels-idx1-ubyte.gz": "test_labels",
}


@dataclass(frozen=True, slots=True)
class FashionMnist:
    """Images ``[n, 28, 28]`` uint8 and labels ``[n]`` uint8 in 0..9; 60,000 to train on and 10,000 to test."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


def load() -> FashionMnist:
    """Return the whole set.

    Raises:
        UserError: it is not in the cache and cannot be fetched.
    """
    row = SETS["fashion-mnist"]

    def make() -> Arrays:
        members = deb_members(obtain(row), lambda name: name.rsplit("/", 1)[-1] in _FILES)
        return {_FILES[name.rsplit("/", 1)[-1]]: idx_array(gzip.decompress(content)) for name, content in members}

    return FashionMnist(**prepared(row.name, row.sha256[:12], make))


def idx_array(content: bytes) -> NDArray[np.uint8]:
    """Return the array of an IDX file of unsigned bytes.

    Raises:
        UserError: the content is no such file, or is cut short.
    """
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise UserError("not an IDX file of unsigned bytes")
    dims = content[3]
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    if len(content) - 4 - 4 * dims != math.prod(shape):
        raise UserError(f"an IDX file of shape {shape} has {len(content) - 4 - 4 * dims} bytes of data")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dims).reshape(shape)
