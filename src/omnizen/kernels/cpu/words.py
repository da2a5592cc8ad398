"""Bit streams as 64-bit words, so that inner loops read and write whole words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words = NDArray[np.uint64]


def empty_words(num_bits: int) -> Words:
    """Return zeroed words for ``num_bits`` bits, and one more that a reader may look into."""
    return np.zeros(num_bits // 64 + 2, np.uint64)


def to_bytes(words: Words, num_bits: int) -> Tensor:
    """Return the bytes that hold the first ``num_bits`` bits, ``[ceil(num_bits / 8)]`` uint8."""
    return torch.from_numpy(words.view(np.uint8)[: -(-num_bits // 8)])


def to_words(packed: Tensor) -> Words:
    """Return bytes as words, padded with zeros and one more word."""
    words = empty_words(8 * packed.numel())
    words.view(np.uint8)[: packed.numel()] = packed.contiguous().numpy()
    return words


def integers(x: Tensor) -> NDArray[Any]:
    """Return a tensor's numbers as a contiguous array that shares memory where it can."""
    return x.detach().contiguous().numpy()
