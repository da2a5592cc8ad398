"""The page on adding a method: its codec keeps the laws, and its table names all of them."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from omnizen.laws.codec import CODEC_LAWS, check_codec
from omnizen.types import Dense

PAGE = Path(__file__).parents[2] / "docs/add-a-method.md"


@pytest.fixture
def half(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(# half\.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "half.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.spec_from_file_location("half", tmp_path / "half.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "half", module)
    spec.loader.exec_module(module)
    return module.Half


def test_the_pages_codec_keeps_all_laws(half):
    assert [v for v in check_codec(half()) if not v.held] == []


def test_the_page_names_all_laws_of_codecs():
    named = re.findall(r"^\| ([a-z ]+) \| ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [law.name for law in CODEC_LAWS] == [name for name in named if name != "law"]


def test_without_its_clamp_it_is_told_what_to_do(half):
    class Careless(half):
        def encode(self, payload, step):
            return super().encode(payload, step)

        def decode(self, payload):
            values = super().decode(payload).values
            return Dense(torch.where(values.abs() >= 65504, torch.inf * values.sign(), values))

    class Far(half):
        def decode(self, payload):
            return Dense(super().decode(payload).values * 190)

    class Crashes(half):
        def decode(self, payload):
            return {}["x"]

    by_law = {v.law: v.reason for v in check_codec(Careless())}
    assert "values came back as infinity or NaN" in by_law["errors are bounded"]
    assert "torch.finfo(dtype).max" in by_law["errors are bounded"]
    by_law = {v.law: v.reason for v in check_codec(Far())}
    assert re.search(r"plain: what came back is .* came back as ", by_law["errors are bounded"])
    by_law = {v.law: v.reason for v in check_codec(Crashes())}
    assert re.fullmatch(rf"raised KeyError: 'x' \({re.escape(__file__)}, line \d+\)", by_law["errors are bounded"])
