import json
import threading

import pytest

from omnizen.events import (
    EndEvent,
    EventWriter,
    NoteEvent,
    PlanEvent,
    RunEvent,
    SpanEvent,
    StepEvent,
    as_dict,
    events_path,
    from_dict,
    read_events,
)

RUN = RunEvent(run_id="a", rank=0, size=2, host="h", device="cpu", method="omnizen", started_unix_s=12.5)
ALL = [
    RUN,
    PlanEvent(step=0, path="plan.toml"),
    StepEvent(step=0, start_s=0.5, step_s=0.25, loss=2.0, rx_bytes=7, rx_bytes_by_peer={1: 7}),
    SpanEvent(step=0, category="wire", name="w", start_s=0.5, duration_s=0.1, thread="main"),
    NoteEvent(step=0, text="a\nb <c>"),
    EndEvent(steps=1, seconds=0.75),
]


def test_what_is_written_is_read_back_one_object_a_line(tmp_path):
    path = events_path(tmp_path / "new folder", 3)
    with EventWriter(path) as events:
        for event in ALL:
            events.write(event)
    assert path.name == "events-rank3.jsonl"
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == [e.event for e in ALL]
    assert read_events(path).events == ALL
    assert read_events(path).problems == []


def test_each_event_is_in_the_file_before_the_writer_is_closed(tmp_path):
    writer = EventWriter(tmp_path / "e")
    writer.write(RUN)
    assert read_events(tmp_path / "e").events == [RUN]
    writer.close()
    writer.close()


def test_half_a_last_line_is_a_problem_and_appending_starts_a_new_line(tmp_path):
    path = tmp_path / "e"
    with EventWriter(path) as events:
        events.write(RUN)
        events.write(ALL[2])
    path.write_bytes(path.read_bytes()[:-20])
    log = read_events(path)
    assert log.events == [RUN]
    assert "last line is cut off" in log.problems[0]
    with EventWriter(path) as events:
        events.write(ALL[5])
    log = read_events(path)
    assert log.events == [RUN, ALL[5]]
    assert "line 2" in log.problems[0]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"event": "stepp"}, "did you mean 'step'"),
        ({"event": "end", "steps": 3}, "lacks seconds"),
        ({"event": "end", "steps": 3, "seconds": "two"}, "seconds of the end event is 'two', not float"),
        ({"event": "end", "steps": None, "seconds": 1.0}, "steps of the end event is None, not int"),
        ([1], "expected an object, got list"),
        ({}, "unknown event"),
    ],
)
def test_what_is_no_event_is_named(raw, says):
    with pytest.raises(ValueError, match=says):
        from_dict(raw)


def test_keys_of_later_versions_are_left_out():
    assert from_dict({"event": "end", "steps": 3, "seconds": 1.0, "mood": "good"}) == EndEvent(steps=3, seconds=1.0)


def test_bytes_that_are_no_text_are_a_problem_of_their_line_only(tmp_path):
    path = tmp_path / "e"
    with EventWriter(path) as events:
        events.write(RUN)
    path.write_bytes(b"\xff\xfe\x00\n" + path.read_bytes())
    log = read_events(path)
    assert log.events == [RUN]
    assert len(log.problems) == 1


def test_threads_that_share_a_writer_do_not_mix_lines(tmp_path):
    with EventWriter(tmp_path / "e") as events:

        def work(rank: int) -> None:
            for i in range(50):
                events.write(NoteEvent(step=i, text=str(rank) * 300))

        threads = [threading.Thread(target=work, args=(r,)) for r in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(20)
    log = read_events(tmp_path / "e")
    assert log.problems == []
    assert len(log.events) == 200


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        ("run", {"size": 10**9}),
        ("run", {"size": 0}),
        ("run", {"dilation": 0}),
        ("run", {"rate_bytes_per_s": float("nan")}),
        ("run", {"model": {"params": "many"}}),
        ("run", {"versions": {"torch": None}}),
        ("run", {"host": "\udcff"}),
        ("step", {"step": -1}),
        ("step", {"step": True}),
        ("step", {"step_s": 0.0}),
        ("step", {"step_s": float("nan")}),
        ("step", {"compute_s": float("inf")}),
        ("step", {"rx_bytes": -1}),
        ("step", {"rx_bytes": float("nan")}),
        ("step", {"samples": 10**400}),
        ("step", {"rx_bytes_by_peer": {"a": 1}}),
        ("step", {"rx_bytes_by_peer": {"1": "x"}}),
        ("span", {"duration_s": float("nan")}),
    ],
)
def test_numbers_that_cannot_be_are_no_event(event, changes):
    whole = next(as_dict(e) for e in ALL if e.event == event)
    from_dict(whole)
    with pytest.raises(ValueError, match=f"{next(iter(changes))} of the {event} event is"):
        from_dict(whole | changes)


def test_a_loss_that_is_not_a_number_is_kept(tmp_path):
    path = tmp_path / "e"
    with EventWriter(path) as events:
        events.write(StepEvent(step=0, start_s=0.0, step_s=0.1, loss=float("nan")))
    assert str(read_events(path).events[0].loss) == "nan"


def test_endless_nesting_is_a_problem_of_its_line_only(tmp_path):
    (tmp_path / "e").write_text("[" * 100_000 + "\n")
    assert len(read_events(tmp_path / "e").problems) == 1
