"""Samplers of word numbers for sampled softmax (Jean et al., 2015, arXiv:1412.2007).

Which one is used decides how much the workers' rows overlap: uniform negatives are nearly all different (8 workers
touch about 6 times as many rows as one), log-uniform ones meet at the frequent words (about 5 times).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Sampler(Protocol):
    """Draws distinct words and knows how often each is to be expected among them."""

    def draw(self, rng: np.random.Generator) -> Tensor:
        """Return ``[num_drawn]`` int64 distinct words."""
        ...

    def log_expected(self, words: Tensor) -> Tensor:
        """Return ``ln Q(k)``, Q being the times that a word is to be expected in a draw; shape of ``words``."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every word is as likely as any other: ``Q(k) = num_drawn / V``.

    Args:
        num_words: ``V``.
        num_drawn: distinct words in a draw.
    """

    num_words: int
    num_drawn: int

    def draw(self, rng: np.random.Generator) -> Tensor:
        """Return ``[num_drawn]`` int64 distinct words."""
        return torch.from_numpy(rng.choice(self.num_words, self.num_drawn, replace=False, shuffle=False))

    def log_expected(self, words: Tensor) -> Tensor:
        """Return the same ``ln Q`` for every word; shape of ``words``."""
        return torch.full(words.shape, math.log(self.num_drawn / self.num_words), device=words.device)


@dataclass(frozen=True, slots=True)
class LogUniform:
    """Zipf's law: word k has probability ``P(k) = ln((k + 2) / (k + 1)) / ln(V + 1)``.

    Args:
        num_words: ``V``; words are numbered by falling frequency.
        num_drawn: distinct words in a draw.
        tries: draws with repeats that give that many distinct words in the mean.
    """

    num_words: int
    num_drawn: int
    tries: float

    @classmethod
    def of(cls, num_words: int, num_drawn: int) -> LogUniform:
        """Return the sampler; ``num_drawn`` must be less than ``num_words``."""
        assert 0 < num_drawn < num_words
        p = np.log1p(1 / (np.arange(num_words) + 1.0)) / math.log(num_words + 1)
        low, high = float(num_drawn), float(num_drawn)
        while -np.expm1(high * np.log1p(-p)).sum() < num_drawn:
            high *= 2
        for _ in range(60):
            middle = (low + high) / 2
            if -np.expm1(middle * np.log1p(-p)).sum() < num_drawn:
                low = middle
            else:
                high = middle
        return cls(num_words, num_drawn, high)

    def draw(self, rng: np.random.Generator) -> Tensor:
        """Return ``[num_drawn]`` int64 distinct words."""
        words = np.zeros(0, np.int64)
        while True:
            chance = rng.random(2 * self.num_drawn)
            more = np.exp(chance * math.log(self.num_words + 1)).astype(np.int64) - 1
            words = np.concatenate([words, np.minimum(more, self.num_words - 1)])
            first = np.sort(np.unique(words, return_index=True)[1])
            if len(first) >= self.num_drawn:
                return torch.from_numpy(words[first[: self.num_drawn]])

    def log_expected(self, words: Tensor) -> Tensor:
        """Return ``ln Q(k)``, Q being the times that a word is to be expected in a draw; shape of ``words``."""
        p = torch.log1p(1 / (words.to(torch.float32) + 1)) / math.log(self.num_words + 1)
        return torch.log(-torch.expm1(self.tries * torch.log1p(-p)))
