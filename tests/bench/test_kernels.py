import pytest
import torch
from typer.testing import CliRunner

from omnizen.bench import kernels
from omnizen.bench.rows import read
from omnizen.cli.main import app

SMALL = kernels.Settings(numel=50_000, rows=2_000, owners=(3,), data=("normal",), repeats=2)


def test_methods_take_turns_after_warming_up():
    calls = []
    seconds = kernels.in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert "".join(calls) == "aabb" + "ababab"
    assert [len(samples) for samples in seconds.values()] == [3, 3]


def test_rows_say_how_good_and_how_fast():
    threads = torch.get_num_threads()
    rows = kernels.run_kernels(SMALL)
    assert torch.get_num_threads() == threads
    chosen = {row.method: row for row in rows if row.metric == kernels.SELECTED}
    assert chosen["top-k"].params["recall"] == 1
    assert chosen["top-k"].params["kept_over_k"] == 1
    assert chosen["threshold"].params["recall"] == 1
    assert chosen["mstopk"].params["recall"] > 0.98
    for row in chosen.values():
        assert row.value * row.params["topk_over_this"] == pytest.approx(chosen[kernels.TOPK].value)
        assert row.value == pytest.approx(row.params["this_over_pass"] * chosen[kernels.PASS].value)
        assert row.repeats == 2
    divided = {row.method: row for row in rows if row.metric == kernels.DIVIDED}
    assert list(divided) == [kernels.SORT, kernels.DIVIDE]
    assert divided[kernels.DIVIDE].value * 1e9 / 2_000 == pytest.approx(divided[kernels.DIVIDE].params["ns_a_row"])


@pytest.mark.parametrize("kind", kernels.DATA)
def test_data_are_what_they_are_called(kind):
    flat = kernels.elements(kind, 100_000, 1)
    kurtosis = float((flat**4).mean() / flat.var() ** 2)
    assert kurtosis == pytest.approx({"normal": 3, "laplace": 6}[kind], rel=0.1)
    assert abs(float(flat.mean())) < 0.02


def test_the_command_prints_a_verdict_and_writes_rows(tmp_path):
    file = tmp_path / "kernels.jsonl"
    arguments = ["bench", "kernels", "--numel", "20000", "--rows", "1000", "--repeats", "1", "--json", str(file)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}, catch_exceptions=False)
    assert result.exit_code == 0
    assert "times as fast as torch.topk (recall 1.0000)" in result.output
    assert "divide 1,000 rows among 8 owners: " in result.output
    rows = read(file)
    assert {row.bench for row in rows} == {"kernels"}
    assert len({row.case for row in rows}) == 4
