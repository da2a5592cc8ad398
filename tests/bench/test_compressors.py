"""Parts of compressors on real gradients, and what is predicted from them."""

import json
import math

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from omnizen.bench.compressors.chart import write_chart
from omnizen.bench.compressors.measure import PARTS, UnitParts, gradients, measure_scheme, middle
from omnizen.bench.compressors.predict import Computing, break_even_bits_per_s, step_time
from omnizen.bench.compressors.run import Settings, all_schemes, run_compressors, table
from omnizen.bench.compressors.turns import Desk, InTurns
from omnizen.bench.rows import KEYS
from omnizen.cli.main import app
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.measure.subject import Subject
from omnizen.types import Traffic

COMPUTING = Computing(0.1, 0.2)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(200, 16, sparse=True)
        self.hidden = nn.Linear(16, 100)

    def forward(self, words):
        return self.hidden(self.table(words).mean(1)).square().mean()


def subject():
    torch.manual_seed(0)
    return Subject(Words(), {8: [torch.randint(200, (8, 5)) for _ in range(3)]}, lambda model, batch: model(batch))


def unit(nbytes, rx_bytes, cpu_s=0.0, late=False, rounds=0):
    seconds = dict.fromkeys(PARTS, 0.0) | {"select": cpu_s}
    return UnitParts("x", nbytes, late, seconds, Traffic(rx_bytes, rx_bytes, rounds))


def test_units_are_those_of_training_with_their_bytes_and_parts():
    found = gradients(subject(), 3)
    assert found.backward_s > 0
    before = [p.grad.to_dense().clone() for p in found.models[1].parameters()]
    turns = measure_scheme(found, "topk", repeats=2)
    assert len(turns) == 2
    units = {each.name: each for each in middle(turns)}
    assert set(units) == {"hidden.bias", "hidden.weight", "table.weight"}
    assert units["table.weight"].late
    assert units["hidden.weight"].seconds["select"] > 0
    assert units["hidden.weight"].traffic.rx_bytes < 0.2 * units["hidden.weight"].nbytes
    assert units["hidden.bias"].traffic.rx_bytes == pytest.approx(4 / 3 * 4 * 101)  # with its flag, around a ring
    for then, param in zip(before, found.models[1].parameters(), strict=True):
        assert torch.equal(then, param.grad.to_dense())  # the gradients are there for the next scheme


def test_ranks_that_take_turns_get_what_they_would_get_without():
    def body(comm, desk):
        turns = InTurns(comm, desk)
        with desk.turn(comm.rank):
            two = [turns.all_reduce(torch.full((3,), float(comm.rank + k))) for k in (0, 10)]
            turns.barrier()
            (parts,) = zip(*turns.all_gather([torch.tensor([comm.rank])]).wait(), strict=True)
            return [pending.wait().tolist() for pending in reversed(two)], torch.cat(parts).tolist()

    desk = Desk(3)
    found = run_ranks(3, lambda comm: body(comm, desk))
    assert found == [([[33.0] * 3, [3.0] * 3], [0, 1, 2])] * 3
    assert min(desk.held_s) > 0


def test_a_step_is_computing_and_what_backward_does_not_hide():
    rate = 8 / 0.95 * 1e6  # a megabyte of payload a second
    assert step_time([unit(100, 50_000)], COMPUTING, rate, 4).step_s == pytest.approx(0.3 + 0.05)
    half = [unit(50, 150_000), unit(50, 0)]  # the first leaves in the middle of backward
    assert step_time(half, COMPUTING, rate, 4).step_s == pytest.approx(0.3 + 0.05)
    late = [unit(50, 150_000, late=True), unit(50, 0)]
    assert step_time(late, COMPUTING, rate, 4).step_s == pytest.approx(0.3 + 0.15)
    dear = [unit(100, 0, cpu_s=0.07, rounds=10)]
    assert step_time(dear, COMPUTING, rate, 4).step_s == pytest.approx(0.3 + 0.07 + 0.003)


def test_break_even_is_where_the_wire_saves_what_the_processor_costs():
    dense = [unit(1_000_000, 1_000_000)]
    saves = [unit(1_000_000, 100_000, cpu_s=0.09)]  # 0.9 MB in 90 ms: 10 MB/s of payload
    assert break_even_bits_per_s(saves, dense, COMPUTING, 4) == pytest.approx(8e7 / 0.95, rel=1e-6)
    assert break_even_bits_per_s([unit(1_000_000, 100_000)], dense, COMPUTING, 4) == math.inf
    assert break_even_bits_per_s([unit(1_000_000, 2_000_000)], dense, COMPUTING, 4) == 0.0


def test_rows_table_and_page(tmp_path):
    settings = Settings(case="words", hosts=2, rates_mbit=(1.0, 1e5), schemes=("zen-coo", "signsgd"), repeats=1)
    rows = run_compressors(subject(), settings)
    assert [row.method for row in rows if row.metric == "select_s"] == ["dense", "zen-coo", "signsgd"]
    predicted = {(r.method, r.rate_mbit): r for r in rows if r.metric == "predicted_step_s"}
    assert predicted["dense", 1.0].params["over_dense"] == 1.0
    assert predicted["signsgd", 1.0].params["over_dense"] > predicted["signsgd", 1e5].params["over_dense"]
    assert {r.params["faster"] for r in rows if r.metric == "break_even_mbit"} <= {"below", "always", "never"}
    assert table(rows).row_count == 3
    write_chart(rows, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "times as fast a step as dense" in page
    assert "signsgd" in page


def test_all_schemes_are_those_that_apply():
    assert "zen-coo" in all_schemes(sparse=True)
    assert "zen-coo" not in all_schemes(sparse=False)
    assert all_schemes(sparse=False)[0] == "dense"
    assert "compact" not in all_schemes(sparse=True)


@pytest.mark.parametrize(("arguments", "says"), [
    (["--hosts", "1"], "between 2 and 64 hosts"), (["--schemes", "topq"], "did you mean 'topk'"),
    (["--rate", "10"], "has no unit"), (["--case", "ln"], "did you mean 'lm'"), (["--repeats", "0"], "repeats"),
    (["--model", "x:y", "--verify", "dense"], "trains one of the cases"),
])  # fmt: skip
def test_bad_input_is_one_clear_error(arguments, says):
    result = CliRunner().invoke(app, ["bench", "compressors", *arguments])
    assert isinstance(result.exception, UserError), result.output
    assert says in str(result.exception)


def test_a_model_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "mine_of_charts.py").write_text(
        "import torch\n"
        "def job():\n"
        "    model = torch.nn.Linear(100, 50)\n"
        "    return model, {4: [torch.ones(4, 100)]}, lambda m, x: m(x).square().mean()\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["--model", "mine_of_charts:job", "--hosts", "2", "--schemes", "topk", "--repeats", "1"]
    out = tmp_path / "rows.jsonl"
    result = CliRunner().invoke(app, ["bench", "compressors", *arguments, "--rate", "10mbit", "--json", str(out)])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["case"] for row in rows} == {"mine_of_charts:job"}
    assert tuple(rows[0]) == KEYS
