import pytest
from typer.testing import CliRunner

from omnizen.cli.main import app
from omnizen.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["e2e", "--methods", "ddp-sparce"], "did you mean 'ddp-sparse'"),
        (["e2e", "--hosts", "1"], "between 2 and 64 hosts"),
        (["e2e", "--repeats", "0"], "repeats must be at least 1"),
        (["e2e", "--case", "ln"], "did you mean 'lm'"),
        (["e2e", "--rate", "100"], "has no unit"),
        (["e2e", "--dilation", "much"], "'auto' or a number"),
        (["sync", "--hosts", "two"], "comma-separated numbers"),
        (["sync", "--density", "0"], "density"),
        (["sync", "--schemes", "zenn"], "unknown scheme"),
        (["e2e", "--hosts", "0"], "between 2 and 64 hosts, got 0"),
        (["e2e", "--batch", "0"], "batch must be at least 1, got 0"),
        (["e2e", "--seconds", "nan"], "timed steps may take more than 0"),
        (["e2e", "--seed", "-1"], "seed must be at least 0"),
        (["e2e", "--methods", ","], "no method to run"),
        (["sync", "--hosts", ""], "nothing to reduce"),
        (["sync", "--density", ","], "nothing to reduce"),
        (["kernels", "--numel", "0"], "numel must be at least 1, got 0"),
        (["kernels", "--density", "1.5"], "density must be above 0 and at most 1, got 1.5"),
        (["kernels", "--data", "norml"], "did you mean 'normal'"),
        (["kernels", "--owners", "two"], "comma-separated numbers"),
        (["kernels", "--owners", "0"], "owners must be at least 1, got 0"),
        (["kernels", "--data", "", "--owners", ""], "nothing to measure"),
    ],
)
def test_bad_input_is_one_clear_error_before_anything_starts(arguments, says):
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(result.exception, UserError), result.output
    assert says in str(result.exception)


def test_help_names_the_options():
    result = CliRunner().invoke(app, ["bench", "e2e", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for option in ("--quick", "--verify", "--json", "--keep-runs", "--dilation"):
        assert option in result.output


@pytest.mark.parametrize("command", ["e2e", "sync", "kernels"])
def test_a_file_of_rows_that_cannot_be_written_is_found_before_anything_runs(command, tmp_path):
    result = CliRunner().invoke(app, ["bench", command, "--json", str(tmp_path)])
    assert isinstance(result.exception, UserError)
    assert "cannot be written: it is a folder" in str(result.exception)
