import pytest
import torch
from torch import nn

from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.measure.facts import Facts
from omnizen.measure.job import measure_job
from omnizen.measure.model import model_digest
from omnizen.measure.subject import Subject, load_subject


class Small(nn.Module):
    """A sparse and a dense embedding, a linear layer, an unused and a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1000, 4, sparse=True)
        self.words = nn.Embedding(500, 4)
        self.out = nn.Linear(4, 1)
        self.unused = nn.Parameter(torch.zeros(3))
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, ids):
        return self.out(self.table(ids) + self.words(ids)).sum()


def subject(rank):
    ids = torch.tensor([1 + rank, 2 + rank, 3 + rank])
    return Subject(Small(), {2: [ids[:2]], 3: [ids, ids + 50]}, lambda model, batch: model(batch))


def test_all_facts_of_a_small_job():
    results = run_ranks(2, lambda comm: measure_job(comm, subject(comm.rank), budget_s=0.5))
    facts = results[0]
    assert results[1] == facts
    assert [d.rank for d in facts.devices] == [0, 1]
    assert [set(d.samples_per_s) for d in facts.devices] == [{"2", "3"}] * 2
    assert len(facts.links) == 2
    assert min(facts.meetings.gather_s, facts.meetings.sum_s) > 0
    assert facts.model_digest == model_digest(Small())
    by_name = {g.name: g for g in facts.gradients}
    assert list(by_name) == ["unused", "table.weight", "words.weight", "out.weight", "out.bias"]
    kinds = {name: g.kind for name, g in by_name.items()}
    assert kinds["table.weight"] == kinds["words.weight"] == "row-sparse"
    assert kinds["out.weight"] == kinds["out.bias"] == kinds["unused"] == "dense"
    table = by_name["table.weight"]
    assert (table.shape, table.density, table.overlap) == ((1000, 4), 0.003, pytest.approx(2 / 3))
    assert table.densification["2"] == pytest.approx(4 / 3)
    assert facts.step.samples == 3
    assert 0 < facts.step.backward_s < facts.step.compute_s
    assert Facts.from_toml(facts.to_toml()) == facts


def test_ranks_whose_gradients_look_different_agree_on_the_kind_that_fits_all():
    def body(comm):
        def loss(model, batch):
            return (model.weight * batch).sum()

        model = nn.Linear(4, 100, bias=False)
        batch = torch.zeros(100, 4)
        batch[:5] = 1.0
        whole = torch.ones(100, 4)
        own = Subject(model, {1: [whole if comm.rank == 1 else batch]}, loss)
        return measure_job(comm, own, budget_s=0.2).gradients[0].kind

    assert run_ranks(2, body) == ["dense", "dense"]


def test_without_a_model_there_are_devices_and_links():
    facts = run_ranks(2, lambda comm: measure_job(comm, budget_s=0.2))[0]
    assert (len(facts.devices), len(facts.links), facts.gradients, facts.step) == (2, 2, [], None)


def test_a_batch_size_without_a_batch_is_refused():
    with pytest.raises(UserError, match="at least one batch"):
        Subject(nn.Linear(1, 1), {4: []}, lambda model, batch: model(batch).sum())


SOURCE = """
import torch
from torch import nn

def small():
    return nn.Linear(2, 1), {4: [torch.ones(4, 2)]}, lambda model, batch: model(batch).sum()

def wrong():
    return nn.Linear(2, 1)
"""


def test_a_users_function_is_found_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "my_subject_here.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    assert list(load_subject("my_subject_here:small").batches) == [4]
    for path, says in [
        ("my_subject_here:smal", "did you mean 'small'"),
        ("my_subject_here:wrong", r"must return \(model, .*got Linear"),
        ("not_here_at_all:small", "no module 'not_here_at_all'"),
        ("my_subject_here", "MODULE:FUNCTION"),
    ]:
        with pytest.raises(UserError, match=says):
            load_subject(path)
