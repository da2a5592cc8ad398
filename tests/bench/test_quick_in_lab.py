"""``omnizen bench e2e --quick`` in the lab, with a model so small that starting processes is all that takes time."""

import pytest
from typer.testing import CliRunner

from omnizen.bench.rows import read
from omnizen.cli.main import app
from omnizen.lab import available


@pytest.mark.lab
@pytest.mark.procs
@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_quick_gives_the_agreed_rows_with_equal_losses(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("the quick brown fox jumps over the lazy dog and away from it . " * 60)
    rows = tmp_path / "rows.jsonl"
    arguments = ["--hosts", "2", "--batch", "2", "--rate", "1gbit", "--text", tmp_path / "text", "--json", rows]
    result = CliRunner().invoke(app, ["bench", "e2e", "--quick", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    found = {(r.method, r.metric): r for r in read(rows)}
    common = {"tokens_per_s", "step_s", "rx_bytes_per_step", "loss"}
    expected = {("ddp-sparse", m) for m in common} | {("omnizen", m) for m in common | {"predicted_step_s"}}
    assert set(found) == expected, result.output
    assert found["omnizen", "loss"].params["max_relative_difference"] < 1e-4
    assert found["omnizen", "rx_bytes_per_step"].params["source"] == "interface counters"
    assert found["omnizen", "step_s"].params["network"] == "namespaces, shaped links"
    assert found["omnizen", "step_s"].rate_mbit == 1000.0
