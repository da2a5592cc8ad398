"""How a user names what is to be trained."""

import pytest

from omnizen.errors import UserError
from omnizen.measure.subject import load_subject

FUNCTIONS = """
from torch import nn
def raises(): raise RuntimeError("no luck")
def ends(): raise SystemExit(0)
def pair(): return nn.Linear(1, 1), {}
def no_batches(): return nn.Linear(1, 1), 5, len
def named(): return nn.Linear(1, 1), {"8": [1]}, len
def no_loss(): return nn.Linear(1, 1), {8: [1]}, None
def good(): return nn.Linear(1, 1), {8: [1]}, len
def no_optimizer(): return nn.Linear(1, 1), {8: [1]}, len, 0.1
def no_loader(): return nn.Linear(1, 1), {8: [1]}, len, len, 5
def once(): return nn.Linear(1, 1), {8: [1]}, len, None, iter([1])
def to_train(): return nn.Linear(1, 1), {8: [1]}, len, len, [1]
def whole():
    from omnizen.measure.subject import Subject
    return Subject(*to_train())
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "my_subjects.py").write_text(FUNCTIONS)
    (tmp_path / "my_exit.py").write_text("raise SystemExit(0)")
    (tmp_path / "my_lack.py").write_text("import nothing_like_it")
    (tmp_path / "my_slip.py").write_text("def x(:")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("my_subjects:raises", r"raises failed: RuntimeError: no luck \(.*my_subjects.py, line 3\)"),
        ("my_subjects:ends", "ends failed: SystemExit: 0"),
        ("my_subjects:pair", r"must return .*got \(Linear, dict\)"),
        ("my_subjects:no_batches", r"must return .*got \(Linear, int, builtin_function_or_method\)"),
        ("my_subjects:named", "must return"),
        ("my_subjects:no_loss", "as the third, got NoneType"),
        ("my_subjects:no_optimizer", "as the fourth, got float"),
        ("my_subjects:no_loader", "as the fifth .*got int"),
        ("my_subjects:once", "passed over again.*got list_iterator"),
        ("my_exit:x", "my_exit cannot be imported: SystemExit: 0"),
        ("my_lack:x", "my_lack cannot be imported: ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("my_slip:x", "my_slip cannot be imported: SyntaxError"),
        ("my_none:x", "there is no module 'my_none'"),
        (".my_none:x", "cannot be imported"),
    ],
)
def test_what_cannot_be_measured_is_explained(here, path, says):
    with pytest.raises(UserError, match=says):
        load_subject(path)


def test_a_good_one_is_taken(here):
    assert list(load_subject("my_subjects:good").batches) == [8]


@pytest.mark.parametrize("name", ["to_train", "whole"])
def test_what_training_needs_may_follow(here, name):
    subject = load_subject(f"my_subjects:{name}")
    assert subject.loader == [1]
    assert subject.optimizer is len
