"""The chart of batch sizes."""

from __future__ import annotations

from pathlib import Path

from omnizen.events import BalanceEvent, EventWriter, events_path
from omnizen.report import batches
from omnizen.report.load import load_run
from omnizen.report.page import render
from tests.report.sample_run import write_run


def with_balance(folder: Path, *events: BalanceEvent, **options):
    write_run(folder, **options)
    with EventWriter(events_path(folder, 0)) as writer:
        for event in events:
            writer.write(event)
    return load_run(folder)


START = BalanceEvent(step=0, sizes=[32, 32, 32, 32])
CHANGE = BalanceEvent(step=9, sizes=[38, 38, 38, 14], own_s=[0.5, 0.5, 0.5, 1.5])


def test_lines_step_where_sizes_changed(tmp_path):
    run = with_balance(tmp_path, START, CHANGE)
    (lines,) = (batches.figure(run.ranks[0].balances, 39)["data"],)
    assert [line["y"] for line in lines] == [[32, 38, 38]] * 3 + [[32, 14, 14]]
    assert lines[0]["x"] == [0, 9, 39]
    page = render([run])
    assert "Samples of each worker in a step of omnizen" in page
    assert "to 38, 38, 38, 14; 1 change, the last decided in step 9" in page


def test_even_batches_need_no_chart(tmp_path):
    assert batches.followed(0, with_balance(tmp_path)) == []


def test_sizes_that_never_changed_and_damaged_lines(tmp_path):
    run = with_balance(tmp_path, START, BalanceEvent(step=4, sizes=[1, 2]))
    assert "32, 32, 32, 32 samples, all the time." in batches.followed(0, run)[0].text


def test_many_workers_are_told_in_words(tmp_path):
    run = with_balance(tmp_path, BalanceEvent(step=0, sizes=[4] * 16), size=16, steps=4)
    (said,) = batches.followed(0, run)
    assert "data-figure" not in said.text
    assert "4, 4" in said.text
