"""A language model with a large word table: tied embedding, LSTM, sampled softmax.

Most of its weights are the table (50,000 x 200 = 10 M of 10.3 M), and a step touches about 2 % of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from omnizen.bench.cases.case import Batch, Case
from omnizen.bench.cases.negatives import LogUniform, Sampler, Uniform
from omnizen.data.tokens import TokenCorpus
from omnizen.errors import UserError, nearest

CORPORA = ("brown", "stdlib")
LEARNING_RATE = 2.0


class TiedLstm(nn.Module):
    """Next-word model whose one table reads words and scores them (Press and Wolf, 2017, arXiv:1608.05859).

    Args:
        num_words: rows of the table.
        width: of a word's row and of the hidden state.
        sparse: whether the table's gradient is a sparse tensor.
        sampler: of the negatives; corrects the scores by their expected count.
    """

    def __init__(self, num_words: int, width: int, *, sparse: bool, sampler: Sampler) -> None:
        super().__init__()
        self.table = nn.Embedding(num_words, width, sparse=sparse)
        nn.init.uniform_(self.table.weight, -0.1, 0.1)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.sampler = sampler

    def forward(self, tokens: Tensor, targets: Tensor, negatives: Tensor) -> Tensor:
        """Return ``[batch * length, 1 + num_negatives]`` scores, the target's first.

        Args:
            tokens: ``[batch, length]`` int64.
            targets: ``[batch, length]`` int64, the words that follow.
            negatives: ``[num_negatives]`` int64, shared by all places; one equal to a target is masked there.
        """
        following = targets.flatten()
        # One lookup, so that the tied table has one gradient of concatenated rows, not a sum of three.
        rows = self.table(torch.cat([tokens.flatten(), following, negatives]))
        read, true_rows, false_rows = rows.split([following.numel(), following.numel(), negatives.numel()])
        hidden = self.lstm(read.view(*tokens.shape, -1))[0].flatten(0, 1)
        true_score = (hidden * true_rows).sum(1) - self.sampler.log_expected(following)
        false_score = hidden @ false_rows.t() - self.sampler.log_expected(negatives)
        false_score = false_score.masked_fill(following[:, None] == negatives, float("-inf"))
        return torch.cat([true_score[:, None], false_score], dim=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class LmCase(Case):
    """Language model over a token corpus; each rank reads a part of its own, the hidden state starts at zero.

    Args:
        corpus: the text.
        width: of rows and hidden state.
        length: words in a sequence.
        num_negatives: distinct words that each rank draws a step; at most a quarter of the vocabulary.
        zipf: whether negatives follow Zipf's law instead of being uniform.
    """

    name: ClassVar[str] = "lm"
    unit: ClassVar[Literal["tokens", "samples"]] = "tokens"

    corpus: TokenCorpus
    width: int = 200
    length: int = 35
    num_negatives: int = 512
    zipf: bool = False

    def __post_init__(self) -> None:
        num_drawn = min(self.num_negatives, self.corpus.num_words // 4)
        if num_drawn == 0:
            raise UserError(
                f"{self.corpus.name} has {self.corpus.num_words} different words; at least 4 are needed"
            )
        make = LogUniform.of if self.zipf else Uniform
        object.__setattr__(self, "_sampler", make(self.corpus.num_words, num_drawn))

    @property
    def sampler(self) -> Sampler:
        """Where negatives come from."""
        return self._sampler  # type: ignore[attr-defined]

    def make_model(self, *, sparse: bool, seed: int) -> nn.Module:
        """Return a new model."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return TiedLstm(self.corpus.num_words, self.width, sparse=sparse, sampler=self.sampler)

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return plain SGD, which does the same for sparse and dense gradients."""
        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def batch_at(self, step: int, *, rank: int, size: int, batch: int, seed: int) -> Batch:
        """Return tokens and targets ``[batch, length]`` and negatives ``[num_negatives]``, all int64.

        The seed chooses the negatives; the order of the text is fixed.
        """
        ids = self.corpus.ids
        part = len(ids) // size
        row = part // batch
        pieces = (row - 1) // self.length
        if pieces < 1:
            raise UserError(
                f"{self.corpus.name} has {len(ids)} tokens; {size} ranks x batch {batch} x {self.length} tokens "
                f"need {size * batch * (self.length + 1)}: take fewer workers, a smaller batch or a longer text"
            )
        starts = rank * part + np.arange(batch) * row + (step % pieces) * self.length
        return self._at(starts, [seed, step, rank])

    def _at(self, starts: NDArray[np.int64], seeds: list[int]) -> Batch:
        window = torch.from_numpy(self.corpus.ids[starts[:, None] + np.arange(self.length + 1)].astype(np.int64))
        negatives = self.sampler.draw(np.random.default_rng(seeds))
        return window[:, :-1].contiguous(), window[:, 1:].contiguous(), negatives

    @property
    def num_samples(self) -> int:
        """Sequences of ``length`` words, one behind the other."""
        return (len(self.corpus.ids) - 1) // self.length

    def take(self, samples: Sequence[int]) -> Batch:
        """Return sequences by number, with negatives that follow from the first of them."""
        return self._at(np.asarray(samples, dtype=np.int64) * self.length, [samples[0]])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean sampled-softmax loss of a word, in nats."""
        scores = model(*batch)
        return cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64, device=scores.device))

    def reads(self, batch: Batch) -> dict[str, Tensor]:
        """Return the words of a batch, negatives included."""
        return {"table.weight": torch.cat([words.flatten() for words in batch])}

    def units_per_batch(self, batch: int) -> int:
        """Return the tokens in a batch."""
        return batch * self.length


def lm_case(*, text: str | Path | None = None, corpus: str = "brown") -> LmCase:
    """Return the language model over a corpus, or over the user's own files.

    Raises:
        UserError: an unknown corpus, or a text that cannot be read or fetched.
    """
    if text is not None:
        from omnizen.data import stdlib_text

        return LmCase(corpus=stdlib_text.load(text))
    if corpus not in CORPORA:
        raise UserError(f"unknown corpus: {nearest(corpus, CORPORA)}")
    from omnizen.data.sets import find

    return LmCase(corpus=find(corpus).load())
