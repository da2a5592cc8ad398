import webbrowser

import pytest
import typer.main
from typer.testing import CliRunner

from omnizen.cli.main import app
from omnizen.events import events_path
from tests.report.sample_run import write_run


def run(*arguments) -> tuple[int, str, BaseException | None]:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return result.exit_code, result.output, result.exception


def test_two_runs_give_one_report_and_the_headline(tmp_path):
    paths = [write_run(tmp_path / method, method, steps=9) for method in ("ddp", "omnizen")]
    code, output, _ = run(*paths)
    assert code == 0
    assert "times as fast." in output
    assert f"report: {tmp_path / 'report.html'}" in output
    assert str(paths[1] / "trace.json") in output
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_what_is_missing_is_said_and_the_report_still_written(tmp_path):
    write_run(tmp_path / "r[1]", steps=9)
    events_path(tmp_path / "r[1]", 2).unlink()
    code, output, _ = run(tmp_path / "r[1]", "--out", tmp_path / "out.html")
    assert code == 0
    assert "no events of rank 2" in output
    assert (tmp_path / "out.html").exists()


def test_open_hands_the_file_to_the_browser(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    assert run(write_run(tmp_path, steps=9), "--open")[0] == 0
    assert opened == [(tmp_path / "report.html").as_uri()]


@pytest.mark.parametrize(("name", "says"), [("nothing", "no run directory"), ("", "holds no events-rank")])
def test_a_directory_that_is_no_run_is_an_error_in_words(tmp_path, name, says):
    code, _, error = run(tmp_path / name)
    assert code != 0
    assert says in str(error)


def test_the_options_are_frozen():
    found = typer.main.get_command(app).commands["report"]
    assert {"/".join(p.opts): p.default for p in found.params if p.name != "help"} == {
        "runs": None,
        "--out/-o": None,
        "--open": False,
    }
