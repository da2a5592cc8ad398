import re

import pytest

from omnizen.errors import UserError
from omnizen.events import EventWriter, NoteEvent, events_path
from omnizen.report.load import load_run, load_runs
from omnizen.report.page import render
from tests.report.sample_run import PLAN_STEP, SIZE, STEPS, write_run


def test_a_whole_run_is_read_with_facts_and_plan_and_nothing_to_complain_of(demo):
    ddp, ours = demo
    assert (ddp.label, ours.label) == ("ddp", "omnizen")
    assert ddp.problems == []
    assert ours.problems == []
    assert sorted(ours.ranks) == list(range(SIZE))
    assert all(len(log.steps) == STEPS and log.end for log in ours.ranks.values())
    assert ddp.plan is None
    assert ours.plan.tensors[0].name == "embedding.weight"
    assert len(ours.facts.links) == SIZE * (SIZE - 1)


def test_notes_that_all_ranks_wrote_are_shown_once(demo):
    assert [note.step for _, note in demo[1].notes] == [PLAN_STEP]


def test_a_run_that_was_killed_is_read_as_far_as_it_goes_and_says_so(tmp_path):
    write_run(tmp_path)
    cut = events_path(tmp_path, 1)
    lines = cut.read_bytes().splitlines(keepends=True)
    cut.write_bytes(b"".join(lines[:20]) + lines[20][:30])
    events_path(tmp_path, 3).unlink()
    (tmp_path / "facts.toml").write_text("[[devices")
    run = load_run(tmp_path)
    said = " ".join(run.problems)
    assert "no events of rank 3: the figures are those of the other 3 of 4" in said
    assert "last line is cut off" in said
    assert "cut short on rank 1 after step 7, or still going" in said
    assert "facts.toml cannot be used" in said
    page = render([run])
    assert "What could not be read" in page
    assert "no events of rank 3" in page


@pytest.mark.parametrize("keep", [1, 2])
def test_a_run_without_any_step_gives_a_report_that_says_why_it_is_empty(tmp_path, keep):
    write_run(tmp_path)
    for rank in range(SIZE):
        path = events_path(tmp_path, rank)
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]) + b'{"event":"st' * (keep - 1))
    page = render([load_run(tmp_path)])
    assert "omnizen finished no step" in page
    assert "before its first step" in page


def test_only_the_last_run_in_a_file_counts(tmp_path):
    write_run(tmp_path, steps=6)
    write_run(tmp_path, steps=4)
    run = load_run(tmp_path)
    assert all(len(log.steps) == 4 for log in run.ranks.values())
    assert "1 earlier run(s)" in run.problems[0]


def test_files_of_ranks_of_an_earlier_larger_run_are_left_out(tmp_path):
    write_run(tmp_path, "ddp", size=4)
    for rank in (0, 1):
        events_path(tmp_path, rank).unlink()
    write_run(tmp_path, "omnizen", size=2, started=100.0)
    run = load_run(tmp_path)
    assert sorted(run.ranks) == [0, 1]
    assert run.run.size == 2
    assert any("another run: ranks 2, 3" in problem for problem in run.problems)


def test_a_rank_whose_first_line_is_lost_is_left_out(tmp_path):
    write_run(tmp_path)
    path = events_path(tmp_path, 2)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    run = load_run(tmp_path)
    assert 2 not in run.ranks
    assert any("rank 2: nothing says which run" in problem for problem in run.problems)


def test_what_is_no_run_is_refused_with_what_to_do(tmp_path):
    write_run(tmp_path / "demo" / "omnizen", steps=2)
    with pytest.raises(UserError, match=r"no run directory .*omnizem.*did you mean .*omnizen"):
        load_run(tmp_path / "demo" / "omnizem")
    with pytest.raises(UserError, match=r"holds no events-rank.*its folders omnizen hold runs"):
        load_run(tmp_path / "demo")
    with pytest.raises(UserError, match="is a file"):
        load_run(tmp_path / "demo" / "omnizen" / "plan.toml")
    with pytest.raises(UserError, match="at least one"):
        load_runs([])
    (tmp_path / "blank").mkdir()
    events_path(tmp_path / "blank", 0).write_text("")
    with pytest.raises(UserError, match="no run can be read"):
        load_run(tmp_path / "blank")


def test_runs_of_the_same_method_are_called_by_their_folders(tmp_path):
    paths = [write_run(tmp_path / name, steps=2) for name in ("first", "second")]
    assert [run.label for run in load_runs(paths)] == ["first", "second"]
    with pytest.raises(UserError, match="given twice"):
        load_runs([paths[0], paths[0]])


def test_events_after_the_end_do_not_break_reading(tmp_path):
    write_run(tmp_path, steps=3)
    with EventWriter(events_path(tmp_path, 0)) as events:
        events.write(NoteEvent(step=3, text="closing"))
    assert load_run(tmp_path).notes[-1][1].text == "closing"


def test_many_bad_lines_are_counted_and_a_folder_for_a_file_is_named(tmp_path):
    write_run(tmp_path)
    with events_path(tmp_path, 0).open("ab") as file:
        file.write(b"{}\n" * 500)
    events_path(tmp_path, 1).unlink()
    events_path(tmp_path, 1).mkdir()
    run = load_run(tmp_path)
    assert sum("line" in problem for problem in run.problems) == 11
    assert "events-rank0.jsonl: 490 more lines cannot be used" in run.problems
    assert "events-rank1.jsonl cannot be read: Is a directory" in run.problems


def test_parts_that_only_some_ranks_recorded_and_losses_beyond_all_bounds_give_a_page(tmp_path):
    write_run(tmp_path, loss_from=lambda step: 1e308)
    for rank in range(1, SIZE):
        path = events_path(tmp_path, rank)
        path.write_text(re.sub(r'"compute_s":[0-9.e-]+', '"compute_s":0.0', path.read_text()))
    assert "Where the time goes" in render([load_run(tmp_path)])
