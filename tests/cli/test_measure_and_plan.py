import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from omnizen.cli.main import app
from omnizen.errors import UserError
from omnizen.measure.facts import Facts
from omnizen.plan.plan import Plan
from tests.plan.builders import job


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "100", "TERM": "dumb"})


def options(command):
    """Return the options of a command's help, with their defaults."""
    import typer.main

    found = typer.main.get_command(app).commands[command]
    return {"/".join([*p.opts, *p.secondary_opts]): p.default for p in found.params if p.name != "help"}


def test_the_options_are_frozen():
    assert {name: str(default) for name, default in options("measure").items()} == {
        "--out/-o": "facts.toml",
        "--model": "None",
        "--budget": "10.0",
        "--timeout": "60.0",
    }
    assert {name: str(default) for name, default in options("plan").items() if name != "facts"} == {
        "--out/-o": "plan.toml",
        "--schemes": "None",
        "--lazy": "None",
        "--allow": "",
        "--at": "None",
        "--explain/--no-explain": "True",
    }


def test_a_plan_is_written_and_explained(tmp_path):
    facts = job(8)
    result = run("plan", facts.save(tmp_path / "facts.toml"), "--out", tmp_path / "plan.toml")
    assert result.exit_code == 0, result.output
    plan = Plan.load(tmp_path / "plan.toml")
    assert (plan.world_size, plan.facts_digest) == (8, facts.digest())
    for part in ("Measured", "Chosen", "table.weight (row-sparse): ", "not dense: ", "Unsure", "plan.toml"):
        assert part in result.output


def test_schemes_can_be_limited_and_the_explanation_left_out(tmp_path):
    facts = job(8).save(tmp_path / "facts.toml")
    result = run("plan", facts, "-o", tmp_path / "p.toml", "--schemes", "agsparse, dense", "--no-explain")
    assert result.exit_code == 0, result.output
    assert "Measured" not in result.output
    tensor = Plan.load(tmp_path / "p.toml").tensors[0]
    assert {tensor.scheme, *(r.scheme for r in tensor.rejected)} == {"agsparse", "dense"}


def test_tables_may_be_lazy_where_facts_or_the_user_say_so(tmp_path):
    facts = job(8, slow=None)
    file, out = facts.save(tmp_path / "facts.toml"), tmp_path / "p.toml"

    def of_table(*more):
        result = run("plan", file, "-o", out, "--no-explain", *more)
        assert result.exit_code == 0, result.output
        return next(t for t in Plan.load(out).tensors if t.name == "table.weight").scheme

    assert of_table() != "lazy"
    assert of_table("--lazy", "table.weight") == "lazy"
    said = [g.model_copy(update={"lazy": True} if g.name == "table.weight" else {}) for g in facts.gradients]
    facts.model_copy(update={"gradients": said}).save(file)
    assert of_table() == "lazy"
    assert "got 'tabel.weight'; did you mean 'table.weight'?" in str(
        run("plan", file, "-o", out, "--lazy", "tabel.weight").exception
    )
    assert "lstm.weight is dense; only tables" in str(
        run("plan", file, "-o", out, "--lazy", "lstm.weight").exception
    )


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("-o", "plan8.toml"), "--out"),
        (("--schemes", "dense", "--lazy", "x"), "--schemes, --lazy"),
        (("--no-explain",), "--explain"),
    ],
)
def test_what_at_would_ignore_is_refused(tmp_path, more, named):
    result = run("plan", job(4).save(tmp_path / "facts.toml"), "--at", "8,64", *more)
    assert isinstance(result.exception, UserError)
    assert f"beside --at this has no effect: {named};" in str(result.exception)


def test_files_of_another_kind_are_named(tmp_path):
    from omnizen.plan.search import make_plan

    facts = job(4)
    plan = make_plan(facts).save(tmp_path / "plan.toml")
    texts = {
        "empty.toml": ("", "is empty; wanted here: facts, as `omnizen measure` writes them"),
        "rows.jsonl": (
            '{"bench": "sync"}\n{"bench": "sync"}\n',
            "holds rows of benchmarks (JSON); wanted here: facts",
        ),
        "events.jsonl": ('{"event": "run"}\n{"event": "end"}\n', "holds events of a run (JSON); wanted"),
        "x.json": ('{\n"a": 1\n}', "holds JSON; wanted"),
        "page.html": ("<html>", "holds a page (HTML); wanted"),
        "rates.toml": (
            '[hosts.3]\nrate = "1mbit"\n',
            "holds rates of hosts, as `omnizen lab --rates` reads them; wanted",
        ),
        "plan.toml": (plan.read_text(), "holds a plan, as `omnizen plan` writes it; wanted here: facts, as"),
    }
    for name, (text, says) in texts.items():
        (tmp_path / name).write_text(text)
        result = run("plan", tmp_path / name)
        assert isinstance(result.exception, UserError)
        assert f"{tmp_path / name} {says}" in str(result.exception)
    with pytest.raises(UserError, match="holds facts, as `omnizen measure` writes them; wanted here: a plan, as"):
        Plan.load(facts.save(tmp_path / "facts.toml"))


def test_a_missing_facts_file_is_one_line(tmp_path):
    result = run("plan", tmp_path / "none.toml")
    assert isinstance(result.exception, UserError)
    assert "there is no file" in str(result.exception)


def test_facts_are_not_overwritten_by_their_plan(tmp_path):
    facts = job(4).save(tmp_path / "facts.toml")
    before = facts.read_bytes()
    with pytest.raises(UserError, match="is read, and would be lost"):
        raise run("plan", facts, "--out", facts).exception
    assert facts.read_bytes() == before


@pytest.mark.parametrize(("option", "says"), [("--schemes", "at least one name"), ("--at", "numbers of workers")])
def test_lists_of_nothing_are_refused(tmp_path, option, says):
    out = ("-o", tmp_path / "p.toml") if option == "--schemes" else ()
    result = run("plan", job(4).save(tmp_path / "facts.toml"), *out, option, ",")
    assert isinstance(result.exception, UserError)
    assert says in str(result.exception)
    assert not (tmp_path / "p.toml").exists()


def test_facts_that_could_not_be_written_are_not_measured(tmp_path, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr("omnizen.measure.job.measure_job", lambda *_, **__: pytest.fail("measured all the same"))
    with pytest.raises(UserError, match="it is a folder; give the name of a file in it"):
        raise run("measure", "--out", tmp_path).exception


SUBJECT = """
import torch
from torch import nn

def small():
    model = nn.Sequential(nn.Embedding(1000, 4, sparse=True), nn.Linear(4, 1))
    return model, {8: [torch.arange(8)]}, lambda model, batch: model(batch).sum()
"""


def test_one_machine_alone_measures_and_plans(tmp_path, monkeypatch):
    (tmp_path / "cli_subject.py").write_text(SUBJECT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    result = run("measure", "--model", "cli_subject:small", "--budget", "0.5")
    assert result.exit_code == 0, result.output
    facts = Facts.load("facts.toml")
    assert (facts.world_size, facts.links) == (1, [])
    assert [g.kind for g in facts.gradients] == ["row-sparse", "dense", "dense"]
    assert "samples/s at batch 8" in result.output
    planned = run("plan", "facts.toml")
    assert planned.exit_code == 0, planned.output
    assert Plan.load("plan.toml").prediction.exposed_comm_s == 0


def test_rank_0_writes_the_facts_of_all_ranks(tmp_path, monkeypatch, capsys):
    from omnizen.cli.measure import measure
    from omnizen.comm.threads import run_ranks
    from omnizen.train.run import Run

    here = threading.local()
    monkeypatch.setattr("omnizen.train.init.init", lambda timeout_s: Run(here.comm, here.comm))

    def body(comm):
        here.comm = comm
        measure(out=tmp_path / f"rank{comm.rank}.toml", model=None, budget=0.3, timeout=20.0)

    run_ranks(3, body)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.toml"]
    facts = Facts.load(tmp_path / "rank0.toml")
    assert (facts.world_size, len(facts.devices), len(facts.links)) == (3, 3, 6)
    assert capsys.readouterr().out.count("3 workers") == 1


@pytest.mark.parametrize("module", ["omnizen.cli.measure", "omnizen.cli.plan", "omnizen.cli.main"])
def test_commands_import_nothing_heavy(module):
    code = f"import sys, {module}; print(sorted({{'torch', 'numba', 'pydantic'}} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    assert out.stdout.strip() == "[]"
