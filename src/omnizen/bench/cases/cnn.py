"""A small convolutional network on Fashion-MNIST: all gradients dense, so that no sparse scheme can help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from omnizen.bench.cases.case import Batch, Case, shuffled
from omnizen.data.fashion_mnist import FashionMnist

LEARNING_RATE = 0.02
MOMENTUM = 0.9


class SmallCnn(nn.Sequential):
    """Two convolutions and two linear layers: 421,576 weights, for ``[batch, 1, 28, 28]`` float32 in 0..1."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 5 * 5, 250),
            nn.ReLU(),
            nn.Linear(250, 10),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CnnCase(Case):
    """Kind of garment from a picture.

    Args:
        data: the pictures.
    """

    name: ClassVar[str] = "cnn"
    unit: ClassVar[Literal["tokens", "samples"]] = "samples"

    data: FashionMnist

    def make_model(self, *, sparse: bool, seed: int) -> nn.Module:  # noqa: ARG002 (it has no embedding)
        """Return a new model; it has no embedding, so ``sparse`` changes nothing."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return SmallCnn()

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def batch_at(self, step: int, *, rank: int, size: int, batch: int, seed: int) -> Batch:
        """Return pictures ``[batch, 1, 28, 28]`` float32 in 0..1 and classes ``[batch]`` int64."""
        total = len(self.data.train_labels)
        chosen = shuffled(step, rank=rank, size=size, batch=batch, seed=seed, total=total).numpy()
        return _tensors(self.data.train_images[chosen], self.data.train_labels[chosen])

    @property
    def num_samples(self) -> int:
        """Pictures to train on."""
        return len(self.data.train_labels)

    def take(self, samples: Sequence[int]) -> Batch:
        """Return pictures and classes by number."""
        chosen = list(samples)
        return _tensors(self.data.train_images[chosen], self.data.train_labels[chosen])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of a picture, in nats."""
        pictures, classes = batch
        return cross_entropy(model(pictures), classes)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Return the fraction of test pictures that are classified right."""
        pictures, classes = _tensors(self.data.test_images, self.data.test_labels)
        guesses = torch.cat([model(part).argmax(1) for part in pictures.split(1000)])
        return float((guesses == classes).float().mean())


def _tensors(images: object, labels: object) -> Batch:
    pictures = torch.as_tensor(images).unsqueeze(1).to(torch.float32) / 255
    return pictures, torch.as_tensor(labels).to(torch.int64)


def cnn_case() -> CnnCase:
    """Return the network on Fashion-MNIST.

    Raises:
        UserError: the data cannot be had.
    """
    from omnizen.data.sets import find

    return CnnCase(data=find("fashion-mnist").load())
