"""Real worker processes on loopback with a tiny language model."""

import pytest

from omnizen.bench.e2e import Settings, single_process_losses, verify
from omnizen.bench.launch import Loopback, python
from omnizen.bench.trial import run_trial
from omnizen.events import RunEvent, StepEvent, events_path, read_events

pytestmark = pytest.mark.procs
TEXT = "the quick brown fox jumps over the lazy dog and runs away from it as fast as legs can carry a fox . "


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text(TEXT * 30)
    return Settings(
        case="lm", hosts=2, methods=("ddp-sparse",), repeats=1, batch=2, limit_s=50.0, budget_s=20.0,
        case_options={"text": str(tmp_path / "text")}, keep_runs=tmp_path / "runs",
    )  # fmt: skip


def test_ddp_trains_as_one_process_does_and_leaves_events(settings):
    rows = {r.metric: r for r in verify(settings, steps=6, launch=Loopback(2))}
    assert rows["loss_off_single_process"].params["same"], rows
    assert rows["loss"].value == pytest.approx(single_process_losses(settings, 6)[-1], rel=1e-4)
    assert rows["step_s"].repeats == 5
    assert rows["tokens_per_s"].params["network"] == "as is"
    events = read_events(events_path(settings.keep_runs / "ddp-sparse-0", 1)).events
    assert isinstance(events[0], RunEvent)
    assert (events[0].method, events[0].size) == ("ddp-sparse", 2)
    steps = [e for e in events if isinstance(e, StepEvent)]
    assert [e.samples for e in steps] == [2] * 6, "sequences, as in a run of Omnizen's, not tokens"


def test_what_a_worker_raises_becomes_the_reason(settings, tmp_path):
    from omnizen.bench.job import Job

    job = Job(
        case="lm", method="ddp-sparse", batch=10**6, case_options=settings.case_options, limit_s=40.0,
        out=tmp_path / "answers", run_dir=tmp_path,
    )  # fmt: skip
    trial = run_trial(job, Loopback(2))
    assert "take fewer workers, a smaller batch or a longer text" in trial.failed
    assert trial.answers == []


def test_a_command_that_hangs_is_ended(tmp_path):
    seen = []
    codes = Loopback(2)(
        [*python("time")[:1], "-c", "import time; print('up', flush=True); time.sleep(600)"],
        lambda rank, line: seen.append((rank, line)),
        limit_s=3.0,
    )
    assert sorted(seen) == [(0, "up"), (1, "up")]
    assert all(code != 0 for code in codes)
