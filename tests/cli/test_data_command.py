import pytest
from typer.testing import CliRunner

from omnizen.cli.main import app
from omnizen.errors import UserError


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("OMNIZEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *args: CliRunner().invoke(app, ["data", *args], catch_exceptions=True)


@pytest.mark.parametrize("args", [(), ("--list",)])
def test_list_names_every_set(run, args):
    output = run(*args).output
    for name in ("stdlib", "brown", "fashion-mnist", "flights", "spam-assassin"):
        assert name in output


def test_where(run, tmp_path):
    assert run("--where").output.strip() == str(tmp_path / "cache" / "data")
    assert run("brown", "--where").output.strip().startswith(str(tmp_path / "cache" / "data" / "brown-"))


def test_own_text_is_read_and_described(run, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("one two two")
    (tmp_path / "text" / "b.bin").write_bytes(b"\0")
    output = run("--text", str(tmp_path / "text")).output
    assert "ids: int32 [3]" in output
    assert "words: 3" in output
    assert "1 of 2 files are not UTF-8 text" in output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("brwn",), "did you mean 'brown'"),
        (("brown", "--text", "."), "goes with no data set"),
    ],
)
def test_errors(run, args, message):
    result = run(*args)
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)


def test_an_empty_name_is_not_the_current_folder(run):
    for name in ("", " "):
        result = run("--text", name)
        assert result.exit_code == 2
        assert "the name of a folder is empty" in result.output
