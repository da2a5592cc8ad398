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
        (["sync", "--schemes", "zen"], "unknown scheme"),
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
