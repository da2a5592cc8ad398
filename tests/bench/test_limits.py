"""Numbers that no benchmark can use: one sentence, before any host is started."""

import pytest

from omnizen.bench import auto, balance, survey
from omnizen.bench.local import run_local
from omnizen.errors import UserError

NAN = float("nan")


def local(**changed):
    usual = {
        "case": "images", "cpu": [1.0, 0.5], "rate": "1gbit", "methods": [], "seeds": 1, "samples": 10, "batch": 2,
        "lr": 0.1, "steps": 2, "pool": 1.0, "seconds": 1.0, "epochs": 1.0, "target": 0.5,
    }  # fmt: skip
    run_local(**usual | changed, launch=lambda *_: pytest.fail("hosts were started"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: balance.Settings(alone_s=NAN), "alone must be a number above 0, got nan"),
        (lambda: balance.Settings(methods=()), "no method to run; allowed: "),
        (lambda: auto.Settings(target=NAN), "target must be a number above 0"),
        (lambda: auto.Settings(most_s=float("inf")), "seconds must be a number above 0"),
        (lambda: auto.Settings(batch=0), "batch must be at least 1, got 0"),
        (lambda: auto.Settings(overhead=5), "overhead is a share of the seconds"),
        (lambda: auto.Settings(search="modl"), "did you mean 'model'"),
        (lambda: auto.Settings(methods=()), "no method to run; allowed: "),
        (lambda: survey.Settings(seeds=0), "seeds must be at least 1"),
        (lambda: local(lr=NAN), "lr must be a number above 0"),
        (lambda: local(seconds=NAN), "seconds must be a number above 0"),
        (lambda: local(batch=0), "batch must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(make, says):
    with pytest.raises(UserError, match=says):
        make()
