"""Rows of the benchmark of the automatic optimizer, from workers that only pretend; losses in order."""

import json
from pathlib import Path

import pytest

from omnizen.bench.auto import Settings, decisions, points, run_auto, table
from omnizen.bench.auto_worker import AutoAnswer
from omnizen.errors import UserError


def pretended(answer):
    """A launch whose workers answer at once, by a function of their job."""

    def start(command, on_line, limit_s):
        path = Path(command[-1])
        job = json.loads(path.read_text())
        for rank in range(2):
            AutoAnswer(rank=rank, **answer(job)).save(path.parent)
            on_line(rank, "did it")
        return [0, 0]

    return start


def test_each_method_gives_a_row_and_the_best_fixed_one_names_what_it_found():
    def answer(job):
        if job["fixed"] is None:
            return {"reached_s": 20.0, "overhead": 0.08, "notes": [("cold start", "chose", "2 groups")]}
        groups, step, momentum = job["fixed"]
        if momentum == 0.9 and groups == 2:
            return {"failed": "the target was not reached in 9 s"}
        return {"reached_s": 100.0 * step + momentum + groups, "point": (groups, step, momentum)}

    settings = Settings(hosts=2, case="cnn")
    rows = run_auto(settings, launch=pretended(answer))
    by_method = {row.method: row for row in rows}
    assert len(points(settings)) == 12
    assert len(rows) == 12 + 4
    assert by_method["best-fixed"].value == min(r.value for r in rows if r.method.startswith("fixed") and r.value)
    assert by_method["best-fixed"].params["found"] == "fixed-g1-lr0.005-m0"
    assert by_method["async-m0.9"].metric == "failed"
    assert by_method["auto"].value == 20.0
    assert by_method["auto"].params["overhead"] == 0.08
    assert table(rows).row_count == len(rows)
    assert decisions(rows).row_count == 1
    assert decisions([by_method["async-m0.9"]]) is None


def test_a_worker_that_is_gone_is_named():
    def start(command, on_line, limit_s):
        AutoAnswer(rank=0, reached_s=1.0).save(Path(command[-1]).parent)
        on_line(1, "Killed")
        return [0, 137]

    (row,) = run_auto(Settings(hosts=2, methods=("auto",)), launch=start)
    assert row.metric == "failed"
    assert row.params["reason"] == "rank 1 ended with status 137 and no answer: Killed"


@pytest.mark.parametrize(
    ("kw", "says"),
    [
        ({"case": "cn"}, "did you mean 'cnn'"),
        ({"methods": ("atuo",)}, "did you mean 'auto'"),
        ({"hosts": 1}, "at least 2"),
        ({"cpu": (1.0,)}, "a speed for each"),
        ({"most_s": 0.0}, "above 0"),
    ],
)
def test_settings_that_are_refused(kw, says):
    with pytest.raises(UserError, match=says):
        Settings(**kw)
