"""The benchmark of codecs: every codec on every sample of its kind, in rows that can be read again."""

import pytest
import torch
from typer.testing import CliRunner

from omnizen import catalog
from omnizen.bench import codecs as bench
from omnizen.bench.rows import adding, read
from omnizen.errors import UserError
from omnizen.types import Dense, Packed, Sparse


@pytest.fixture(autouse=True)
def gradient(monkeypatch):
    values = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(bench, "real_gradient", lambda _: values)


def run(**settings):
    return bench.run_codecs(
        **{"elements": 5000, "densities": (0.01, 0.1), "names": (), "repeats": 1, "seed": 0, **settings}
    )


def test_every_codec_that_packs_is_measured_on_every_sample_of_its_kind():
    rows = run()
    fit = [
        n for n in catalog.CODECS if catalog.codec(n).gives is Packed and catalog.codec(n).takes in (Dense, Sparse)
    ]
    assert {row.method for row in rows} == set(fit)
    cases = {name: {row.case for row in rows if row.method == name} for name in fit}
    for name in fit:
        assert len(cases[name]) == (2 if catalog.codec(name).takes is Sparse else 4)
    for row in rows:
        if row.metric == "relative_error":
            assert row.value == 0 or not row.params["exact"], row.method
        elif row.method != "bloom-p0":
            assert row.value > 0, (row.method, row.metric)


def test_bits_are_those_of_the_codec_beyond_the_values():
    rows = {(r.method, r.case): r.value for r in run(names=("coo", "bitmap", "sign")) if "bits" in r.metric}
    assert rows["coo", "5000 elements d=0.1 uniform"] == 32
    assert 8 < rows["bitmap", "5000 elements d=0.1 uniform"] < 12
    assert rows["sign", "gradient of lm, largest 1"] == pytest.approx(1 + 32 / 2000)


def test_names_and_settings_are_checked():
    with pytest.raises(UserError, match="did you mean 'golomb'"):
        run(names=("golom",))
    with pytest.raises(UserError, match="each density above 0"):
        run(densities=(0.0,))


def test_the_command_writes_rows(tmp_path):
    from omnizen.cli.main import app

    file = tmp_path / "rows.jsonl"
    args = [
        "bench",
        "codecs",
        "--elements",
        "3000",
        "--density",
        "0.1",
        "--codecs",
        "golomb,qsgd",
        "--repeats",
        "1",
    ]
    result = CliRunner().invoke(app, [*args, "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "golomb" in result.output
    assert {row.method for row in read(file)} == {"golomb", "qsgd"}


def test_an_interrupt_loses_no_codec_that_was_measured(tmp_path):
    file = tmp_path / "rows.jsonl"
    keep = adding(file)

    def on_rows(rows):
        keep(rows)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run_codecs(elements=300, densities=[0.1], names=[], repeats=1, seed=0, on_rows=on_rows)
    assert {row.method for row in read(file)} == {"coo"}
