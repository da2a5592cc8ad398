import json

import pytest

from omnizen.bench import rows
from omnizen.errors import UserError

PLACE = {"bench": "e2e", "case": "lm", "method": "ddp", "hosts": 4, "rate_mbit": 100.0}


def test_a_row_has_exactly_the_agreed_keys(tmp_path):
    row = rows.measured([3.0, 1.0, 2.0], **PLACE, metric="step_s", unit="s", params={"batch": 32})
    rows.append(tmp_path / "sub" / "rows.jsonl", [row])
    record = json.loads((tmp_path / "sub" / "rows.jsonl").read_text())
    agreed = "bench, case, method, hosts, rate_mbit, metric, value, unit, p20, p80, repeats, params"
    assert ", ".join(record) == agreed + ", machine, versions, commit"
    assert (record["value"], record["repeats"]) == (2.0, 3)
    assert record["p20"] == pytest.approx(1.4)
    assert record["p80"] == pytest.approx(2.6)
    assert record["versions"]["torch"]
    assert "cores" in record["machine"]


def test_appending_keeps_earlier_rows_and_reading_gives_them_back(tmp_path):
    path = tmp_path / "rows.jsonl"
    good = rows.measured([1.0], **PLACE, metric="loss", unit="nats", params={})
    bad = rows.failed("hung", **PLACE, params={"seed": 0})
    rows.append(path, [good])
    rows.append(path, [bad])
    assert rows.read(path) == [good, bad]
    assert (bad.metric, bad.value, bad.params) == ("failed", None, {"seed": 0, "reason": "hung"})


def test_a_misspelt_key_names_the_nearest(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"metrik": 1}\n')
    with pytest.raises(UserError, match="did you mean 'metric'"):
        rows.read(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"3\n", "line 1: not a row, which is a JSON object with bench"),
        (b"[" * 10_000, "not JSON"),
        (b"\xff", "UTF-8"),
    ],
)
def test_what_is_no_file_of_rows(tmp_path, content, says):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=says):
        rows.read(path)


def test_no_sample_is_an_error_and_nan_is_never_written(tmp_path):
    with pytest.raises(UserError, match="no sample of step_s"):
        rows.measured([], **PLACE, metric="step_s", unit="s", params={})
    nan = rows.measured([float("nan")], **PLACE, metric="loss", unit="nats", params={})
    with pytest.raises(ValueError, match="JSON"):
        rows.append(tmp_path / "rows.jsonl", [nan])


def test_a_file_that_cannot_take_rows_is_found_at_once(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="file is a file, not a folder"):
        rows.adding(tmp_path / "file" / "rows.jsonl")
    with pytest.raises(UserError, match="it is a folder"):
        rows.adding(tmp_path)
