"""Methods written as text."""

import pytest

from omnizen import catalog
from omnizen.errors import UserError


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("topk(density=0.001)", "topk"),
        ("topk(density=1e-3, memory=False)", "topk"),
        ("qsgd(levels=3, norm='l2')", "qsgd"),
        ("zen", "zen-coo"),
        ("zen(pull='bitmap')", "zen-bitmap"),
        ("selected(top-k(density=0.1), zen(values='float16'))", "selected(top-k, zen-coo)"),
        ("feedback(wangni)", "feedback(wangni)"),
        ("feedback(selected(top-k(density=0.1), zen-bitmap), decay=0.5)", "feedback(selected(top-k, zen-bitmap))"),
        ("selected(random-block, dense(values='bfloat16'))", "selected(random-block, dense)"),
        ("gathered(paired(golomb, cast-bfloat16))", "gathered(golomb+cast-bfloat16)"),
        ("two-way(ternary(density=0.05))", "two-way(ternary)"),
        ("warmup(dense, topk, steps=10)", "warmup(dense, topk from 10)"),
    ],
)
def test_texts_make_reducers(text, name):
    assert catalog.reducer(text).name == name


def test_settings_arrive():
    assert catalog.reducer("selected(top-k(density=1e-3), agsparse)").selector.density == 1e-3
    assert catalog.reducer("feedback(powersgd(rank=2), decay=0.5)").decay == 0.5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("topkk(density=0.1)", "did you mean 'topk'"),
        ("selected(topk, agsparse)", "did you mean 'top-k'"),
        ("gathered(golom)", "did you mean 'golomb'"),
        ("topk(0.1)", "settings of topk need their names"),
        (
            "topk(densty=0.1)",
            "topk has no such setting: got 'densty'; did you mean 'density'. allowed: density, values",
        ),
        ("feedback(topk, deacy=0.5)", "feedback has no such setting: got 'deacy'; did you mean 'decay'"),
        (
            "selected(top-k(dnsity=0.1), agsparse)",
            "top-k has no such setting: got 'dnsity'; did you mean 'density'",
        ),
        ("signsgd(density=0.1)", "signsgd has no settings, got 'density'"),
        ("topk(density='much')", "density is the fraction that is kept, .*got 'much'"),
        ("dgc(clip_norm='much')", "got 'much'"),
        ("feedback(dgc, decay='much')", "got 'much'"),
        ("compact(reducer='dense')", "compact: reducer is a Reducer, got 'dense'"),
        ("qsgd(3)", "need their names, as in qsgd.levels=7."),
        ("feedback(topk, dense)", "feedback goes around 1 method: feedback.reducer.; got 2"),
        ("warmup(dense, topk)", "warmup needs steps="),
        ("topk(density=other)", "settings are numbers"),
        ("topk(density=0.1", "cannot be read as a method"),
        ("(1)(2)", "is not made of names"),
        ("topk(density=7)", "density is the fraction that is kept"),
    ],
)
def test_what_cannot_be_made_is_one_sentence(text, sentence):
    with pytest.raises(UserError, match=sentence):
        catalog.reducer(text)
