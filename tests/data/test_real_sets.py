"""The real sets, where they can be had: what they hold is what the table says."""

import numpy as np
import pytest

from omnizen.data.fetch import obtain
from omnizen.data.sets import find
from omnizen.errors import UserError

pytestmark = pytest.mark.data


def real(name):
    try:
        # Three commands at most, so within a test's own limit: a slow network skips with its reason.
        obtain(find(name), limit_s=18)
    except UserError as reason:
        if "expected" in str(reason):
            raise
        pytest.skip(str(reason))
    return find(name).load()


def test_brown():
    corpus = real("brown")
    assert len(corpus.ids) == 1_161_192
    assert corpus.num_words == 49_816
    assert [corpus.words[i] for i in corpus.ids[:5]] == ["the", "fulton", "county", "grand", "jury"]


def test_fashion_mnist():
    data = real("fashion-mnist")
    assert data.train_images.shape == (60_000, 28, 28)
    assert data.test_images.shape == (10_000, 28, 28)
    assert np.bincount(data.train_labels).tolist() == [6000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10


def test_flights():
    pytest.importorskip("pandas", reason="the flights need pandas")
    data = real("flights")
    assert data.columns.shape == (327_346, 11)
    assert data.num_columns == 15_781
    assert data.late.mean() == pytest.approx(0.237, abs=0.0005)
    starts = data.field_starts
    assert (data.columns >= starts[:-1]).all()
    assert (data.columns < starts[1:]).all()


def test_spam_assassin():
    data = real("spam-assassin")
    assert len(data.spam) == 6_046
    assert data.spam.sum() == 1_896
    assert len(data.words) == 48_407
    assert data.starts[-1] == len(data.weights) == 1_583_489
