"""Two small models on real data, fast enough for many runs on one core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from omnizen.errors import UserError, nearest

Batch = tuple[Tensor, Tensor]
TEST_SAMPLES = 1000
WORDS, CONTEXT, WIDTH = 2000, 4, 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A model, and samples to train and to test it on.

    Args:
        inputs: training inputs, the first dimension counts samples.
        targets: class of each.
        test: what the loss and the accuracy are measured on.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor
    test: Batch
    batch: ClassVar[int] = 32

    def model(self, seed: int) -> nn.Module:
        """Return a new model, from a seed of its own."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make()

    def batch_at(self, step: int, rank: int, seed: int) -> Batch:
        """Return one rank's samples of a step, drawn at random."""
        rng = torch.Generator().manual_seed((seed * 100_003 + step) * 64 + rank)
        rows = torch.randint(self.targets.numel(), (self.batch,), generator=rng)
        return self.inputs[rows], self.targets[rows]

    @torch.no_grad()
    def tested(self, model: nn.Module) -> tuple[float, float]:
        """Return loss and accuracy on the test samples."""
        inputs, targets = self.test
        out = model(inputs)
        return float(cross_entropy(out, targets)), float((out.argmax(1) == targets).double().mean())


class NextWord(nn.Module):
    """The next word from the four before it: 201,936 weights; its word table has dense gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.hidden = nn.Linear(CONTEXT * WIDTH, 64)
        self.out = nn.Linear(64, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Return scores ``[batch, words]`` for ids ``[batch, context]``."""
        return self.out(self.hidden(self.table(words).flatten(1)).tanh())


def images() -> Task:
    """Fashion-MNIST by one hidden layer of 100 units: 79,510 weights."""
    from omnizen.data.fashion_mnist import load

    data = load()

    def pictures(raw: np.ndarray) -> Tensor:
        return torch.from_numpy(raw.reshape(len(raw), -1).astype(np.float32)) / 255

    def labels(raw: np.ndarray) -> Tensor:
        return torch.from_numpy(raw.astype(np.int64))

    return Task(
        name="images",
        make=lambda: nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10)),
        inputs=pictures(data.train_images),
        targets=labels(data.train_labels),
        test=(pictures(data.test_images[:TEST_SAMPLES]), labels(data.test_labels[:TEST_SAMPLES])),
    )


def text() -> Task:
    """Python's standard library: the next of 2,000 words."""
    from omnizen.data.stdlib_text import load

    ids = torch.from_numpy(load(vocabulary=WORDS).ids.astype(np.int64))
    windows = ids.unfold(0, CONTEXT + 1, 1)
    split = len(windows) * 49 // 50
    held = windows[split:]
    held = held[:: max(1, len(held) // TEST_SAMPLES)][:TEST_SAMPLES]
    return Task(
        name="text",
        make=NextWord,
        inputs=windows[:split, :CONTEXT],
        targets=windows[:split, CONTEXT],
        test=(held[:, :CONTEXT].contiguous(), held[:, CONTEXT].contiguous()),
    )


TASKS: dict[str, Callable[[], Task]] = {"images": images, "text": text}


def load_task(name: str) -> Task:
    """Return a task by name; raises ``UserError`` for an unknown one."""
    if name not in TASKS:
        raise UserError(f"case: {nearest(name, TASKS)}")
    return TASKS[name]()
