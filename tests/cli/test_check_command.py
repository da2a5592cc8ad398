"""``omnizen check`` on users' own plug-ins, and ``omnizen cite``."""

import pytest
from typer.testing import CliRunner

from omnizen.cli.main import app
from omnizen.errors import UserError

GOOD = '''
"""A codec and a reducer of a user's own."""
from dataclasses import dataclass
from omnizen.codecs.cast import Cast
from omnizen.reducers.agsparse import AgSparse
from omnizen.types import Dense

@dataclass(frozen=True)
class Mine(Cast):
    values: str = "bfloat16"

@dataclass(frozen=True)
class Wrong(Mine):
    def decode(self, payload):
        return Dense(super().decode(payload).values * 190)

class Half:
    def select(self, flat, step): ...

mine = AgSparse()
half = object()

class Partly:
    def start(self): ...

def needs(size): ...

class Fails(AgSparse):
    def __init__(self):
        raise RuntimeError("no luck")

class Unreadable(AgSparse):
    @property
    def name(self):
        raise RuntimeError("no name")

unreadable = Unreadable()
'''


def run(*arguments):
    return CliRunner().invoke(app, ["check", *arguments], catch_exceptions=True)


@pytest.fixture
def plugins(tmp_path):
    file = tmp_path / "plugins_of_mine.py"
    file.write_text(GOOD)
    return file


@pytest.mark.parametrize("name", ["Mine", "mine"])
def test_a_good_plug_in_keeps_all_laws(plugins, name):
    result = run(f"{plugins}:{name}", *(("--ranks", "1,3") if name == "mine" else ()))
    assert result.exit_code == 0, result.output
    assert "laws hold" in result.output


def test_a_bad_plug_in_is_told_which_law_it_breaks(plugins):
    result = run(f"{plugins}:Wrong")
    assert result.exit_code == 1
    assert "NO" in result.output
    assert "that of sending nothing" in " ".join(result.output.replace("│", " ").split())
    assert "1 of 10 laws are broken" in result.output


def test_rows_of_the_catalogue_can_be_named():
    assert run("coo").exit_code == 0
    assert "all 7 laws hold" in run("top-k").output


def test_wrong_targets_are_explained(plugins, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("import nothing_like_it")
    (tmp_path / "ends.py").write_text("import sys; sys.exit(0)")
    (tmp_path / "ends_here.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    wrong = {
        f"{tmp_path}/ends.py:x": "cannot be imported: SystemExit: 0",
        "ends_here:x": "ends_here cannot be imported: SystemExit: 0",
        f"{plugins}:Fails": "Fails cannot be made: RuntimeError: no luck (",
        f"{plugins}:unreadable": "is a reducer whose parts cannot be read: RuntimeError: no name",
        ":x": "is neither a file",
        "..:x": "is neither a file",
        f"{tmp_path}/broken.py:x": "cannot be imported: ModuleNotFoundError",
        f"{plugins}:Mien": "did you mean 'Mine'",
        f"{plugins}:half": "is object, neither a codec",
        f"{plugins}:Partly": "is a reducer without name, takes, agrees, conserves, exact, init, traffic",
        f"{plugins}:Half": "is a selector without name, density, unbiased, keeps (name: name in the catalogue",
        f"{plugins}:needs": "cannot be made without arguments",
        f"{tmp_path}/none.py:Mine": "there is no file",
        "no_such_package.x:Mine": "there is no module",
        str(plugins): f"say what in it is to be checked: {plugins}:Mine, {plugins}:Wrong, ",
        f"{tmp_path}/none.py": "there is no file",
        f"{plugins}:": "names nothing after the colon",
        "zen-co": "did you mean 'zen-coo'",
        "zenn": "did you mean 'zen'",
        "top-q": "did you mean 'top-k'",
    }
    for target, message in wrong.items():
        result = run(target)
        assert isinstance(result.exception, UserError), target
        assert message in str(result.exception), (target, result.exception)
    assert "from 1 to 64" in str(run(f"{plugins}:mine", "--ranks", "1,x").exception)


def test_cite_prints_the_reference():
    result = CliRunner().invoke(app, ["cite", "zen-coo"])
    assert result.output.startswith("% zen-coo\n@inproceedings{wang2025zen,")
    everything = CliRunner().invoke(app, ["cite"]).output
    assert "sparcml" in everything
    assert everything.count("@inproceedings{wang2025zen") == 1
    assert "did you mean 'sparcml'" in str(CliRunner().invoke(app, ["cite", "sparkml"]).exception)


def test_the_list_holds_every_name_that_a_plan_may_use():
    shown = CliRunner().invoke(app, ["cite", "--list"], env={"COLUMNS": "100"}).output
    for name, meaning in (("zen", "another name of zen-coo"), ("lazy", "gradients to owners"), ("zen-coo", "")):
        assert any(line.split()[:1] == [name] and meaning in line for line in shown.splitlines()), (name, shown)
