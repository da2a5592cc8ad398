"""Each rank measures with batches of its own: the page's example does, and facts of equal batches are doubted."""

import os
import re
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from omnizen.cli.main import app
from omnizen.measure.subject import load_subject
from omnizen.plan.explain import doubts
from tests.plan.builders import GRADIENTS, job

PAGE = Path(__file__).parents[2] / "docs/planning.md"
TABLE = GRADIENTS["table.weight"]


def test_the_pages_example_draws_the_same_model_and_other_batches_on_each_rank(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(# mine\.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    subjects = []
    for rank in "01":
        (tmp_path / f"mine{rank}.py").write_text(code)
        monkeypatch.setitem(os.environ, "RANK", rank)
        subjects.append(load_subject(f"mine{rank}:job"))
    a, b = subjects
    assert all(
        torch.equal(x, y) for x, y in zip(a.model.state_dict().values(), b.model.state_dict().values(), strict=True)
    )
    assert not torch.equal(a.batches[16][0][0], b.batches[16][0][0])
    a.run(a.batches[16][0])
    assert next(a.model.parameters()).grad.is_sparse


@pytest.mark.parametrize(
    ("overlaps", "density", "size", "doubted"),
    [
        ((1.0, 1.0), 0.02, 4, True),
        ((1.0, 0.999), 0.02, 4, False),
        ((1.0,), 1.0, 4, False),
        ((1.0,), 0.02, 1, False),
        ((), 1, 4, False),
    ],
)
def test_rows_that_all_coincide_are_doubted(tmp_path, overlaps, density, size, doubted):
    given = [
        TABLE.model_copy(update={"name": f"t{n}", "overlap": overlap, "density": density})
        for n, overlap in enumerate(overlaps)
    ]
    facts = job(size, gradients=[*given, GRADIENTS["lstm.weight"]])
    assert bool(doubts(facts)) == doubted
    if doubted:
        shown = CliRunner().invoke(
            app, ["plan", str(facts.save(tmp_path / "f.toml")), "-o", str(tmp_path / "p.toml")]
        )
        assert "did all ranks draw the same batches?" in shown.output
