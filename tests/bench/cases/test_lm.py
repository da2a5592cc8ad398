import math

import numpy as np
import pytest
import torch

from omnizen.bench.cases.lm import LmCase, lm_case
from omnizen.bench.cases.negatives import LogUniform, Uniform
from omnizen.data.tokens import TokenCorpus
from omnizen.errors import UserError


def corpus(num_words=100, num_tokens=2000):
    ids = (np.arange(num_tokens) % num_words).astype(np.int32)
    return TokenCorpus("counting", ids, [str(i) for i in range(num_words)])


@pytest.mark.parametrize("make", [LogUniform.of, Uniform])
def test_draws_are_distinct_and_follow_the_expected_counts(make):
    sampler = make(200, 20)
    rng = np.random.default_rng(0)
    draws = [sampler.draw(rng) for _ in range(4000)]
    assert all(len(draw.unique()) == 20 for draw in draws)
    share = torch.bincount(torch.cat(draws), minlength=200) / len(draws)
    expected = sampler.log_expected(torch.arange(200)).exp()
    assert expected.sum().item() == pytest.approx(20, rel=1e-3)
    # Four standard errors of a share of 0.5, plus what is left out by taking the number of tries as fixed.
    assert (share - expected).abs().max() < 4 * math.sqrt(0.25 / 4000) + 0.01


def test_targets_are_the_next_words_and_ranks_read_their_own_part():
    case = LmCase(corpus=corpus(2000, 2000), width=4, length=10)
    seen = []
    for rank in range(2):
        tokens, targets, negatives = case.batch_at(1, rank=rank, size=2, batch=4, seed=0)
        assert tokens.shape == targets.shape == (4, 10)
        assert negatives.shape == (500,)
        assert torch.equal(targets, tokens + 1)
        seen.append(set(tokens.flatten().tolist()))
    assert max(seen[0]) < 1000 <= min(seen[1])


def test_reading_begins_again_when_a_part_is_used_up():
    case = LmCase(corpus=corpus(), width=4, length=10)
    pieces = (2000 // 4 - 1) // 10
    first, again = (case.batch_at(s, rank=0, size=1, batch=4, seed=0) for s in (0, pieces))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[2], again[2])


def test_scores_are_the_textbook_formula():
    case = LmCase(corpus=corpus(), width=4, length=3, num_negatives=5)
    model = case.make_model(sparse=False, seed=0)
    tokens, targets = torch.tensor([[1, 2, 3]]), torch.tensor([[2, 3, 4]])
    negatives = torch.tensor([3, 50, 60, 70, 80])
    scores = model(tokens, targets, negatives)
    hidden = model.lstm(model.table(tokens))[0][0]
    for place, target in enumerate(targets[0].tolist()):
        for slot, word in enumerate([target, *negatives.tolist()]):
            if slot and word == target:
                assert scores[place, slot] == float("-inf")
                continue
            expected = hidden[place] @ model.table.weight[word] - case.sampler.log_expected(torch.tensor(word))
            assert scores[place, slot].item() == pytest.approx(expected.item(), rel=1e-5)


def test_only_rows_of_the_batch_have_gradients():
    case = LmCase(corpus=corpus(), width=4, length=3, num_negatives=5)
    model = case.make_model(sparse=True, seed=0)
    batch = case.batch_at(0, rank=0, size=1, batch=2, seed=0)
    case.loss(model, batch).backward()
    touched = model.table.weight.grad.coalesce().indices()[0].tolist()
    assert touched == sorted({int(i) for part in batch for i in part.flatten()})


def test_a_text_that_is_too_short_says_what_is_needed():
    case = LmCase(corpus=corpus(num_tokens=300), width=4)
    with pytest.raises(UserError, match=r"has 300 tokens; 4 ranks x batch 32 x 35 tokens need 4608"):
        case.batch_at(0, rank=0, size=4, batch=32, seed=0)


def test_unknown_corpus_and_tiny_vocabulary_are_errors():
    with pytest.raises(UserError, match="did you mean 'brown'"):
        lm_case(corpus="brwn")
    with pytest.raises(UserError, match="at least 4"):
        LmCase(corpus=corpus(num_words=3))


def test_the_users_own_text(tmp_path, monkeypatch):
    monkeypatch.setenv("OMNIZEN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("the cat sat on the mat . " * 200)
    case = lm_case(text=folder)
    assert case.corpus.num_words == 7
    loss = case.loss(case.make_model(sparse=True, seed=0), case.batch_at(0, rank=0, size=1, batch=8, seed=0))
    assert math.isfinite(loss.item())
