import numpy as np
import pytest

from omnizen.bench.cases.cnn import CnnCase
from omnizen.bench.cases.flights import FlightsCase
from omnizen.bench.cases.lm import LmCase
from omnizen.data.fashion_mnist import FashionMnist
from omnizen.data.flights import Flights
from omnizen.data.tokens import TokenCorpus


def small_corpus(num_tokens=6000, num_words=300):
    """Words that follow a rule with some noise, so that there is something to learn."""
    rng = np.random.default_rng(5)
    noise = np.minimum(rng.zipf(1.5, num_tokens), num_words - 1)
    ids = np.where(rng.random(num_tokens) < 0.7, (np.arange(num_tokens) * 7) % 20 + 1, noise)
    return TokenCorpus("small", ids.astype(np.int32), ["<unk>", *(f"w{i}" for i in range(1, num_words))])


def small_flights(num_rows=1000):
    rng = np.random.default_rng(6)
    fields = rng.integers(0, 20, (num_rows, 3))
    late = (fields.sum(1) > 28).astype(np.uint8)
    return Flights((fields + np.array([0, 20, 40])).astype(np.int32), late, np.array([0, 20, 40, 60], np.int32))


def small_pictures(num_rows=400):
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 10, num_rows).astype(np.uint8)
    images = rng.integers(0, 80, (num_rows, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 4, :] = 250
    return FashionMnist(images[100:], labels[100:], images[:100], labels[:100])


@pytest.fixture(params=["lm", "flights", "cnn"], scope="session")
def case(request):
    if request.param == "lm":
        return LmCase(corpus=small_corpus(), width=16, length=10, num_negatives=40)
    return FlightsCase(data=small_flights()) if request.param == "flights" else CnnCase(data=small_pictures())
