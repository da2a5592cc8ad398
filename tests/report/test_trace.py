import json

import pytest

from omnizen.report.load import load_run
from omnizen.report.trace import trace_events, write_trace
from tests.report.sample_run import PLAN_STEP, SIZE, write_run


def test_spans_of_all_ranks_are_on_one_clock(demo):
    events = trace_events(demo[1])
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == sum(len(log.spans) for log in demo[1].ranks.values()) == 3 * 3 * SIZE
    first = {rank: min(e["ts"] for e in spans if e["pid"] == rank) for rank in range(SIZE)}
    # Each rank of the sample starts 10 ms later by the clock, and its own second 0.01 later again.
    own = {rank: demo[1].ranks[rank].spans[0].start_s for rank in range(SIZE)}
    for rank in range(SIZE):
        assert first[rank] == pytest.approx((own[rank] + 0.01 * rank) * 1e6, abs=1.0)
    assert {e["args"]["step"] for e in spans} == {PLAN_STEP, PLAN_STEP + 1, PLAN_STEP + 2}


def test_processes_are_ranks_and_threads_have_names(demo):
    names = {(e["name"], e["pid"]): e["args"]["name"] for e in trace_events(demo[1]) if e["name"].endswith("_name")}
    assert names["process_name", 2] == "rank 2 (worker2, cpu)"
    assert names["thread_name", 2] == "MainThread"


def test_the_file_is_json_and_absent_without_spans(tmp_path, demo):
    path = write_trace(demo[1], tmp_path / "t.json")
    assert json.loads(path.read_text())["traceEvents"] == trace_events(demo[1])
    bare = load_run(write_run(tmp_path / "ddp", "ddp", steps=2))
    assert write_trace(bare) is None
    assert not (tmp_path / "ddp" / "trace.json").exists()
