"""``omnizen bench e2e --quick`` in the lab, with a model so small that starting processes takes the time."""

import pytest
from typer.testing import CliRunner

from omnizen.bench.e2e import Settings, single_process_losses
from omnizen.bench.rows import read
from omnizen.cli.main import app
from omnizen.lab import available


@pytest.mark.lab
@pytest.mark.procs
@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_quick_gives_the_agreed_rows_and_one_process_the_same_loss(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("the quick brown fox jumps over the lazy dog and away from it . " * 60)
    rows = tmp_path / "rows.jsonl"
    arguments = ["--hosts", "2", "--batch", "2", "--rate", "1gbit", "--text", tmp_path / "text", "--json", rows]
    result = CliRunner().invoke(app, ["bench", "e2e", "--quick", "--methods", "omnizen", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    found = {r.metric: r for r in read(rows)}
    assert set(found) == {"tokens_per_s", "step_s", "rx_bytes_per_step", "loss", "predicted_step_s"}
    assert found["rx_bytes_per_step"].params["source"] == "interface counters"
    assert found["step_s"].params["network"] == "namespaces, shaped links"
    assert found["step_s"].rate_mbit == 1000.0
    same = Settings(case="lm", hosts=2, batch=2, case_options={"text": str(tmp_path / "text")})
    steps = found["loss"].params["step"]
    assert found["loss"].value == pytest.approx(single_process_losses(same, steps)[-1], rel=1e-4)
