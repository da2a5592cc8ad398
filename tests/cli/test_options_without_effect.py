"""Options that others would leave without effect are refused, not ignored."""

import pytest
from typer.testing import CliRunner

from omnizen.cli.main import app
from omnizen.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("lab --clean --hosts 3", "beside --clean this has no effect: --hosts"),
        ("data brown --list", "beside --list this has no effect: NAME"),
        ("data --where --limit-s 5", "beside --where this has no effect: --limit-s"),
        ("check coo --ranks 1,2", "beside a codec without ranks this has no effect: --ranks"),
        ("bench strategies --summary x.jsonl --hosts 3 --json y", "no effect: --hosts, --json"),
        ("bench curves --draw --json x.jsonl --steps 3", "beside --draw this has no effect: --steps"),
        ("bench survey --quick --seeds 3", "beside --quick this has no effect: --seeds"),
        ("bench compressors --model x:y --case lm --batch 3", "beside --model this has no effect: --case, --batch"),
        ("bench e2e --quick --steps 3 --seconds 2", "beside --quick this has no effect: --steps, --seconds"),
        ("bench e2e --verify --repeats 3", "beside --verify this has no effect: --repeats"),
        ("bench sync --grid --rows 9", "beside --grid this has no effect: --rows"),
        ("tune x:y --save-every 9", "beside tuning without --train this has no effect: --save-every"),
        ("bench plan --quick --cases 100", "beside --quick, which judges 50 at most, this has no effect: --cases"),
        ("bench sync --quick --repeats 9", "beside --quick this has no effect: --repeats"),
    ],
)
def test_options_without_effect_are_refused(arguments, says):
    result = CliRunner().invoke(app, arguments.split())
    assert isinstance(result.exception, UserError), result.output
    assert says in str(result.exception)


def test_quick_keeps_the_methods_that_were_named():
    from omnizen.bench.e2e import Settings, quick

    settings = Settings(case="lm", methods=("torchft",))
    assert quick(settings, chosen=True)["methods"] == ("torchft",)
