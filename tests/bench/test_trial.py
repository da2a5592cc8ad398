from types import SimpleNamespace

import pytest

from omnizen.bench.e2e import Settings, run_e2e
from omnizen.bench.job import Answer, Job, answers
from omnizen.bench.rows import adding, read
from omnizen.bench.trial import parse_message, why_failed


def answer(rank, failed=""):
    return Answer(rank=rank, size=3, method="ddp", failed=failed)


def test_messages_are_told_from_other_output():
    assert parse_message('@step {"step": 3}') == ("step", {"step": 3})
    assert parse_message("@step not json") is None
    assert parse_message("loss 3.0") is None


def test_the_first_cause_is_the_reason():
    closed = "RuntimeError: Connection closed by peer"
    late = "did not finish within 70 s; 6 steps were done"
    found = [answer(0, closed), answer(1, late), answer(2, "UserError: no such corpus\nmore")]
    assert why_failed([1, 1, 1], found, {}) == "rank 2: UserError: no such corpus"
    assert why_failed([1, 1], found[:2], {}) == f"rank 1: {late}"


def test_a_worker_without_an_answer_is_named_with_its_last_words():
    assert (
        why_failed([0, -9], [answer(0)], {1: ["Killed", ""]}) == "rank 1 ended with status -9 and no answer: Killed"
    )
    assert why_failed([0, 0], [answer(0), answer(1)], {}) == ""


def test_a_job_forgets_the_answers_to_an_earlier_one(tmp_path):
    answer(2).save(tmp_path)
    job = Job(case="lm", method="ddp", batch=1, out=tmp_path, run_dir=tmp_path)
    assert Job.model_validate_json(job.save().read_text()) == job
    assert answers(tmp_path) == []


def test_an_interrupt_loses_no_run_that_had_ended(monkeypatch, tmp_path):
    """Rows of e2e are medians over all repeats, so hours of runs were once lost with the last one."""
    monkeypatch.setattr("omnizen.bench.cases.make_case", lambda *_, **__: SimpleNamespace(unit="tokens"))
    started = []

    def launch(command, on_line, limit_s):
        started.append(command)
        if len(started) == 2:
            raise KeyboardInterrupt
        return [1, 1]

    keep = adding(tmp_path / "rows.jsonl")
    settings = Settings(case="lm", hosts=2, methods=("ddp", "omnizen"), repeats=1)
    with pytest.raises(KeyboardInterrupt):
        run_e2e(settings, launch=launch, on_rows=keep)
    assert [(row.method, row.metric) for row in read(tmp_path / "rows.jsonl")] == [("ddp", "failed")]
