"""What holds for every command: errors are one line, output may go anywhere, little is loaded for help."""

import subprocess
import sys
from pathlib import Path

import pytest

from omnizen.cli import main


def omnizen(*args, **settings):
    command = [sys.executable, "-W", "error", "-m", "omnizen", *args]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=50, check=False, **settings)


@pytest.mark.parametrize("args", [["cite"], ["--version"], ["data", "--list"], ["--help"]])
def test_output_that_cannot_be_written_is_one_line(args):
    with Path("/dev/full").open("w") as full:
        done = omnizen(*args, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "omnizen: the output cannot be used: No space left on device\n"


def test_a_reader_that_ends_early_hears_no_complaint():
    reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    reader.wait(timeout=20)
    done = omnizen("cite", stdout=reader.stdin)
    reader.stdin.close()
    assert done.stderr == ""


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "facts.toml").write_text('torch_version = "2"\nworld_size = 1\n')
    done = omnizen("plan", "facts.toml", "--out", "facts.toml/x", cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("omnizen: facts.toml/x cannot be written: ")


def test_closed_output_is_no_error():
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m omnizen cite dense >&-"],
        stderr=subprocess.PIPE, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from omnizen.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(str([m for m in ('torch', 'numba', 'numpy', 'plotly', 'pydantic') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_more_than_the_memory_holds_is_one_line(monkeypatch, capsys, error):
    def app():
        raise error

    monkeypatch.setattr(main, "app", app)
    with pytest.raises(SystemExit):
        main.main()
    assert "not enough memory for this; ask for fewer elements" in capsys.readouterr().err
